"use strict";
// The review queue: scores by key or button, skips, and brings the next exchange without loading the page again.

const queue = document.getElementById("queue");
const said = document.querySelector("[data-said]");
const scored = []; // ids scored here: where what was said takes a moment to land, they are passed over meanwhile
const JUST_SCORED = 20;

/** Puts the page at an address in place of what is shown; keeps the address, so that it can be shared. */
async function move(address, remember) {
  const asked = new URL(address, location.href);
  for (const id of scored) asked.searchParams.append("skip", id);
  const response = await fetch(asked, { credentials: "same-origin" });
  if (response.redirected) { location.assign(response.url); return ""; }
  if (!response.ok) return `The server answered ${response.status}. Reload the page.`;
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  if (remember) history.pushState(null, "", address);
  const [item, words] = [queue.querySelector("[data-item]")?.dataset.item, queue.querySelector("#comment")?.value];
  queue.replaceChildren(...page.getElementById("queue").childNodes);
  // What was written about an exchange stays while it is looked at in another way.
  if (words && item === queue.querySelector("[data-item]")?.dataset.item) queue.querySelector("#comment").value = words;
  const other = document.getElementById("blind");
  const twin = page.getElementById("blind");
  if (other && twin) other.replaceWith(twin);
  const heading = document.getElementById("item");
  if (heading) {
    heading.focus({ preventScroll: true });
    scrollTo(0, 0);
  } else {
    queue.querySelector("h2")?.setAttribute("tabindex", "-1");
    queue.querySelector("h2")?.focus();
  }
  return "";
}

async function score(form, button) {
  const id = queue.querySelector("[data-item]").dataset.item;
  const comment = form.elements.comment.value.trim();
  const body = { score: Number(button.value), ...(comment && { comment }) };
  await attempt(button, form.querySelector("[data-problem]"), async () => {
    const response = await send("POST", form.getAttribute("action"), body);
    if (!response.ok) return problemOf(response);
    scored.push(id);
    scored.splice(0, scored.length - JUST_SCORED);
    said.textContent = `Scored ${body.score}. To change it, score again; the newest score counts. `;
    const back = document.createElement("a");
    back.href = `${location.pathname.replace(/review$/, "exchanges/")}${encodeURIComponent(id)}`;
    back.textContent = "View it";
    said.append(back);
    borrow();
    return move(location.href, false);
  });
}

function skip(link) {
  said.textContent = "Skipped; it will come up again later.";
  move(link.href, true).catch(() => location.assign(link.href));
}

document.addEventListener("submit", (event) => {
  if (!event.target.matches("[data-review]")) return;
  event.preventDefault();
  if (event.submitter) score(event.target, event.submitter);
});

document.addEventListener("click", (event) => {
  const link = event.target.closest("[data-skip]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  skip(link);
});

addEventListener("popstate", () => { move(location.href, false).catch(() => location.reload()); });

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  const writing = event.target.matches("input, textarea, select");
  if (writing) {
    if (event.key === "Escape") document.getElementById("item")?.focus({ preventScroll: true });
    return;
  }
  const button = queue.querySelector(`[data-review] button[value="${CSS.escape(event.key)}"]`);
  const link = event.key.toLowerCase() === "s" && queue.querySelector("[data-skip]");
  const comment = event.key.toLowerCase() === "c" && queue.querySelector("#comment");
  const blind = event.key.toLowerCase() === "b" && document.getElementById("blind");
  if (!button && !link && !comment && !blind) return;
  event.preventDefault();
  if (button && !queue.querySelector("[data-review] button:disabled")) button.click();
  if (link) skip(link);
  if (comment) comment.focus();
  if (blind) move(blind.href, true).catch(() => location.assign(blind.href));
});
