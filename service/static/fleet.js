"use strict";
// Narrows the list of projects that is on the page already: by text, health and order, kept in the address so that it can be shared.

const filter = document.querySelector("[data-filter]");
if (filter) {
  const apply = () => {
    const list = document.getElementById(filter.dataset.filter);
    const count = document.querySelector("[data-count]");
    if (!list) return;
    const text = filter.elements.q.value.trim().toLowerCase();
    const order = filter.elements.sort.value;
    const health = filter.elements.health.value;
    let found = 0;
    const cards = [...list.children];
    for (const card of cards) {
      const fits = card.dataset.name.includes(text) && ["", card.dataset.health].includes(health);
      card.hidden = !fits;
      found += fits;
    }
    const key = (card) => Number(card.dataset[order]);
    cards.sort((a, b) => (order === "name" ? 0 : key(b) - key(a)) || (a.dataset.name < b.dataset.name ? -1 : 1));
    if (cards.some((card, place) => card !== list.children[place])) list.append(...cards);
    // Until the rest is here, what is narrowed are the first ones only.
    const rest = document.querySelector("[data-rest]");
    const of = rest ? `the first ${figures(cards.length)} of ${figures(Number(rest.dataset.rest))}` : figures(cards.length);
    if (count) count.textContent = `${figures(found)} of ${of} ${count.dataset.of}`;
    for (const none of document.querySelectorAll("[data-none]")) none.hidden = found > 0 || Boolean(rest);
    const asked = { q: text, sort: order === "worst" ? "" : order, health };
    history.replaceState(null, "", addressed(asked));
    for (const link of document.querySelectorAll("[data-view]")) link.href = addressed({ ...asked, view: link.dataset.view });
    for (const link of document.querySelectorAll("[data-choose]")) link.href = addressed({ ...asked, health: link.dataset.choose });
  };
  const addressed = (asked) => {
    const query = new URLSearchParams(location.search);
    for (const [name, value] of Object.entries(asked)) {
      if (value) query.set(name, value);
      else query.delete(name);
    }
    return `${location.pathname}${query.size ? `?${query}` : ""}`;
  };
  const query = new URLSearchParams(location.search);
  filter.elements.q.value = query.get("q") || "";
  for (const name of ["sort", "health"]) {
    const wanted = [...filter.elements[name].options].find((option) => option.value === query.get(name));
    if (wanted) wanted.selected = true;
  }
  filter.addEventListener("input", apply);
  filter.addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("driftline:part", apply);
  apply();
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.target.matches("input, textarea, select")) {
      event.preventDefault();
      filter.elements.q.focus();
    }
  });
}
