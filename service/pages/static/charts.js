"use strict";
// The charts of a page: figures with `data-chart`, and small lines with `data-spark`, of which a fleet has hundreds: those are drawn as
// they come into view.
// A figure's tooltip says what the row of its table says; a click, Enter or the tooltip's link leads to where that row leads.

const drawn = new Map(); // element → { plot, show }
let touched = false;
let current = null; // the chart that says where the crosshair is

const views = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) if (isIntersecting) draw(target);
}, { rootMargin: "300px" });
const sizes = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const chart = drawn.get(target.closest("[data-chart]"));
    if (chart && target.clientWidth && target.clientWidth !== chart.plot.width) chart.plot.setSize({ width: target.clientWidth, height: target.clientHeight });
  }
});

function made(kind, name, text = "") {
  const element = document.createElement(kind);
  element.className = name;
  element.textContent = text;
  return element;
}

/** Draws an element that is on the page and not drawn yet. */
function draw(element) {
  if (drawn.has(element) || !element.isConnected) return;
  views.unobserve(element);
  if (element.dataset.spark) drawn.set(element, { plot: plotSpark(element, JSON.parse(element.dataset.spark)) });
  else drawn.set(element, drawFigure(element));
}

/** The rows of a chart's table, each as its label, its cells with their headings, and where it leads. */
function rowsOf(figure) {
  const heads = [...figure.querySelectorAll("thead th")].slice(1).map((one) => one.textContent);
  return [...figure.querySelectorAll("tbody tr")].map((row) => ({
    label: row.cells[0].textContent,
    cells: [...row.cells].slice(1).map((cell, place) => [heads[place], cell.textContent.trim()]).filter(([, text]) => text),
    link: row.querySelector("th a"),
  }));
}

function drawFigure(figure) {
  const root = figure.querySelector(".plot");
  const [tip, said] = [root.querySelector(".tip"), figure.querySelector(".said")];
  const rows = rowsOf(figure);
  const spec = JSON.parse(figure.dataset.chart);
  const across = (found) => plotted.valToPos(spec.places ? spec.places[found] : found, "x");
  let place = null;

  const show = (found) => {
    // A finger on the tooltip has left the canvas: the tooltip stays until something else is touched.
    if (found === null && touched && current === figure) return;
    place = found;
    const isHere = found !== null && current === figure && rows[found];
    tip.hidden = !isHere;
    if (!isHere) return;
    const { label, cells, link } = rows[found];
    tip.replaceChildren(made("strong", "", label), ...cells.map(([head, text]) => made("span", "", head.toLowerCase() === text ? text : `${head}: ${text}`)));
    if (link) {
      const open = made("a", "", touched ? "Zoom in" : "Click to zoom in");
      open.href = link.href;
      if (touched) open.className = "tap";
      open.tabIndex = -1;
      tip.append(open);
    }
    const left = across(found) + plotted.over.offsetLeft;
    const room = root.clientWidth - tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(room, left > root.clientWidth / 2 ? left - tip.offsetWidth - 12 : left + 12))}px`;
  };
  const plotted = plot(root, spec, (_, found) => show(found));
  root.append(tip);
  const move = (found) => plotted.setCursor({ left: across(found), top: 1 }, true, true);
  const tell = () => {
    const row = rows[place];
    said.textContent = row ? [row.label, ...row.cells.map(([head, text]) => `${head} ${text}`)].join(", ") : "";
  };
  const leave = () => {
    current = null;
    plotted.setCursor({ left: -10, top: -10 }, true, true);
    said.textContent = "";
  };

  root.onpointerenter = (event) => { touched = event.pointerType === "touch"; current = figure; };
  root.onpointerleave = (event) => { if (event.pointerType === "mouse" && current === figure) leave(); };
  plotted.over.onpointerdown = plotted.over.onpointermove = (event) => {
    touched = event.pointerType === "touch";
    current = figure;
    if (touched) plotted.setCursor({ left: event.clientX - plotted.over.getBoundingClientRect().left, top: 1 }, true, true);
  };
  plotted.over.onclick = (event) => {
    const link = place === null ? null : rows[place]?.link;
    if (!link || touched) return;
    if (event.ctrlKey || event.metaKey) window.open(link.href, "_blank", "noopener");
    else location.assign(link.href);
  };
  root.onfocus = () => {
    if (!root.matches(":focus-visible")) return;
    current = figure;
    move(place ?? rows.length - 1);
    tell();
  };
  root.onblur = (event) => { if (current === figure && !root.contains(event.relatedTarget)) leave(); };
  const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -7, PageDown: 7, Home: -Infinity, End: Infinity };
  root.onkeydown = (event) => {
    if (event.key === "Enter" && rows[place]?.link) location.assign(rows[place].link.href);
    else if (event.key === "Escape") leave();
    else if (event.key in steps) {
      event.preventDefault();
      current = figure;
      move(Math.min(rows.length - 1, Math.max(0, (place ?? rows.length - 1) + steps[event.key])));
      tell();
    }
  };
  sizes.observe(root);
  return { plot: plotted, leave };
}

/** Makes room for a chart and folds its table, which is the chart for whoever has no script. */
function prepare(figure) {
  const root = made("div", "plot");
  root.tabIndex = 0;
  root.setAttribute("role", "group");
  root.setAttribute("aria-roledescription", "chart");
  root.setAttribute("aria-label", `${figure.getAttribute("aria-label")}. Arrow keys move from point to point.`);
  const tip = made("div", "tip");
  tip.hidden = true;
  tip.setAttribute("aria-hidden", "true");
  root.append(tip);
  const said = made("p", "said visually-hidden");
  said.setAttribute("role", "status");
  figure.querySelector("details").open = false;
  figure.classList.add("ready");
  figure.prepend(root, said);
}

/** Finds what is to be drawn in a part of the page. */
function find(part) {
  for (const figure of part.querySelectorAll("[data-chart]:not(.ready)")) prepare(figure);
  for (const figure of part.querySelectorAll("[data-chart]")) draw(figure);
  for (const element of part.querySelectorAll("[data-spark]")) if (!drawn.has(element)) views.observe(element);
}

function forget(element) {
  const { plot: plotted } = drawn.get(element);
  drawn.delete(element);
  if (current === element) current = null;
  const root = element.querySelector(".plot");
  if (root) sizes.unobserve(root);
  plotted.destroy();
}

/** Draws everything again, in the colours of now. */
function redraw() {
  colours.clear();
  for (const element of [...drawn.keys()]) {
    const root = element.querySelector(".plot");
    const tip = root?.querySelector(".tip");
    forget(element);
    if (tip) root.replaceChildren(tip);
    if (element.isConnected) draw(element);
  }
}

if (typeof uPlot === "function") {
  find(document);
  new MutationObserver((records) => {
    if (!records.some((one) => [...one.addedNodes].some((node) => node instanceof HTMLElement && !node.closest(".plot, .spark")))) return;
    for (const element of [...drawn.keys()]) if (!element.isConnected) forget(element);
    find(document);
  }).observe(document.body, { childList: true, subtree: true });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  document.addEventListener("pointerdown", (event) => {
    const chart = drawn.get(current);
    if (chart?.leave && !event.target.closest(".plot")) chart.leave();
  });
  // Paper is light, and what was not in view yet is printed, too.
  addEventListener("beforeprint", () => {
    document.documentElement.style.colorScheme = "light";
    for (const element of document.querySelectorAll("[data-spark]")) draw(element);
    redraw();
  });
  addEventListener("afterprint", () => {
    document.documentElement.style.colorScheme = "";
    redraw();
  });
}
