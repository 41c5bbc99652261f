"use strict";
// The charts of a page: figures with `data-chart`, and sparklines with `data-spark`. A fleet has hundreds of sparklines, so each is drawn when
// it scrolls into view. The tooltip of a chart shows a row of its table, and a click, Enter or the tooltip opens the link of that row.

const drawn = new Map(); // element → { plot, leave }
const zooms = new WeakMap(); // figure → positions between which it is shown, or null for all
let isTouch = false; // whether the last pointer was a finger
let current = null; // the chart that controls the crosshair

const views = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) if (isIntersecting) draw(target);
}, { rootMargin: "300px" });
const sizes = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const chart = drawn.get(target.closest("[data-chart]"));
    if (chart && target.clientWidth && target.clientWidth !== chart.plot.width) chart.plot.setSize({ width: target.clientWidth, height: target.clientHeight });
  }
});

function createElement(kind, name, text = "") {
  const element = document.createElement(kind);
  element.className = name;
  element.textContent = text;
  return element;
}

/** Draws a chart or sparkline if it is on the page and not drawn yet. */
function draw(element) {
  if (drawn.has(element) || !element.isConnected) return;
  views.unobserve(element);
  if (element.dataset.spark) drawn.set(element, { plot: plotSpark(element, JSON.parse(element.dataset.spark), JSON.parse(element.dataset.bounds ?? "null")) });
  else drawn.set(element, drawFigure(element));
}

/** Returns the rows of a chart's table, each with its label, its cells with headings, and its link. */
function readRows(figure) {
  const headings = [...figure.querySelectorAll("thead th")].slice(1).map((heading) => heading.textContent);
  return [...figure.querySelectorAll("tbody tr")].map((row) => ({
    label: row.cells[0].textContent,
    cells: [...row.cells].slice(1).map((cell, column) => [headings[column], cell.textContent.trim()]).filter(([, text]) => text),
    link: row.querySelector("th a"),
  }));
}

/** Returns the period of the points from one index to another: UTC days if they are days, otherwise times. */
function periodOf({ at, from, step }, first, last) {
  const startOf = (index) => (at ? at[index] : from + index * step);
  const format = (seconds) => new Date(seconds * 1000).toISOString();
  const end = startOf(last) + (step || 120);
  if (step % 86400 === 0 && step && startOf(first) % 86400 === 0) return { since: format(startOf(first)).slice(0, 10), until: format(end - 1).slice(0, 10) };
  return { since: `${format(startOf(first)).slice(0, 16)}Z`, until: `${format(end).slice(0, 16)}Z` };
}

/** Zooms to the points between two positions: by the period of the page if it has one, otherwise within the chart. */
function zoomTo(figure, spec, plotted, low, high) {
  const positions = spec.places || spec.labels.map((_, index) => index);
  const inside = positions.map((_, index) => index).filter((index) => positions[index] >= low && positions[index] <= high);
  const middle = (low + high) / 2;
  const nearest = positions.map((position, index) => [Math.abs(position - middle), index]).sort(([left], [right]) => left - right)[0][1];
  const [first, last] = inside.length ? [inside[0], inside.at(-1)] : [nearest, nearest];
  if (spec.times && document.querySelector("[data-range]")) {
    showPeriod(periodOf(spec.times, first, last), figure.id);
    return;
  }
  plotted.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  if (inside.length < 2) return;
  setZoom(figure, spec, plotted, spec.places ? [low, high] : [first - 0.5, last + 0.5]);
  if (figure.querySelector("button.reset-zoom")) return;
  const reset = createElement("button", "quiet reset-zoom", "\u2715 Reset zoom");
  reset.type = "button";
  reset.addEventListener("click", () => { reset.remove(); setZoom(figure, spec, plotted, null); });
  figure.querySelector(".plot").after(reset);
}

function setZoom(figure, spec, plotted, zoom) {
  spec.zoom = zoom;
  zooms.set(figure, zoom);
  const [min, max] = zoom || spec.ends || [-0.5, spec.labels.length - 0.5];
  plotted.setScale("x", { min, max });
}

function drawFigure(figure) {
  const root = figure.querySelector(".plot");
  const tip = root.querySelector(".tip");
  const readout = figure.querySelector(".said");
  const rows = readRows(figure);
  const spec = { ...readSpec(figure), zoom: zooms.get(figure) };
  const toPixels = (index) => plotted.valToPos(spec.places ? spec.places[index] : index, "x");
  let selected = null;

  const showTip = (index) => {
    // A finger on the tooltip is outside the canvas. The tooltip stays until something else is touched.
    if (index === null && isTouch && current === figure) return;
    selected = index;
    const isShown = index !== null && current === figure && rows[index];
    tip.hidden = !isShown;
    if (!isShown) return;
    const { label, cells, link } = rows[index];
    tip.replaceChildren(createElement("strong", "", label), ...cells.map(([heading, text]) => createElement("span", "", heading.toLowerCase() === text ? text : `${heading}: ${text}`)));
    if (link) {
      const open = createElement("a", "", isTouch ? "Zoom in" : "Click or drag to zoom in");
      open.href = link.href;
      if (isTouch) open.className = "tap";
      open.tabIndex = -1;
      tip.append(open);
    }
    const left = toPixels(index) + plotted.over.offsetLeft;
    const room = root.clientWidth - tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(room, left > root.clientWidth / 2 ? left - tip.offsetWidth - 12 : left + 12))}px`;
  };
  const plotted = plot(root, spec, (_, index) => showTip(index), (low, high) => { if (current === figure) zoomTo(figure, spec, plotted, low, high); });
  root.append(tip);
  const moveCursor = (index) => plotted.setCursor({ left: toPixels(index), top: 1 }, true, true);
  const announceRow = () => {
    const row = rows[selected];
    readout.textContent = row ? [row.label, ...row.cells.map(([heading, text]) => `${heading} ${text}`)].join(", ") : "";
  };
  const leave = () => {
    current = null;
    plotted.setCursor({ left: -10, top: -10 }, true, true);
    readout.textContent = "";
  };

  root.onpointerenter = (event) => { isTouch = event.pointerType === "touch"; current = figure; };
  root.onpointerleave = (event) => { if (event.pointerType === "mouse" && current === figure) leave(); };
  plotted.over.onpointerdown = plotted.over.onpointermove = (event) => {
    isTouch = event.pointerType === "touch";
    current = figure;
    if (isTouch) plotted.setCursor({ left: event.clientX - plotted.over.getBoundingClientRect().left, top: 1 }, true, true);
  };
  plotted.over.onclick = (event) => {
    const link = selected === null ? null : rows[selected]?.link;
    if (!link || isTouch) return;
    if (event.ctrlKey || event.metaKey) window.open(link.href, "_blank", "noopener");
    else location.assign(link.href);
  };
  root.onfocus = () => {
    if (!root.matches(":focus-visible")) return;
    current = figure;
    moveCursor(selected ?? rows.length - 1);
    announceRow();
  };
  root.onblur = (event) => { if (current === figure && !root.contains(event.relatedTarget)) leave(); };
  const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -7, PageDown: 7, Home: -Infinity, End: Infinity };
  root.onkeydown = (event) => {
    if (event.key === "Enter" && rows[selected]?.link) location.assign(rows[selected].link.href);
    else if (event.key === "Escape") leave();
    else if (event.key in steps) {
      event.preventDefault();
      current = figure;
      moveCursor(Math.min(rows.length - 1, Math.max(0, (selected ?? rows.length - 1) + steps[event.key])));
      announceRow();
    }
  };
  sizes.observe(root);
  return { plot: plotted, leave };
}

/** Adds the elements of a chart and folds its table, which replaces the chart if scripts are off. */
function prepareFigure(figure) {
  const root = createElement("div", "plot");
  root.tabIndex = 0;
  root.setAttribute("role", "group");
  root.setAttribute("aria-roledescription", "chart");
  root.setAttribute("aria-label", `${figure.getAttribute("aria-label")}. Arrow keys move from point to point.`);
  const tip = createElement("div", "tip");
  tip.hidden = true;
  tip.setAttribute("aria-hidden", "true");
  root.append(tip);
  const readout = createElement("p", "said visually-hidden");
  readout.setAttribute("role", "status");
  figure.querySelector("details").open = Boolean(figure.closest("dialog"));
  figure.classList.add("ready");
  figure.prepend(root, readout);
  prepareTools(figure);
  // On a page with a custom range, charts link to the page without it.
  const reset = document.querySelector(".range .reset");
  if (reset && "times" in JSON.parse(figure.dataset.chart)) {
    const link = createElement("a", "reset-zoom", "\u2715 Reset zoom");
    link.href = `${reset.href}#${figure.id}`;
    figure.querySelector(".tools")?.prepend(link);
  }
}

/** Draws the charts of a part of the page. */
function drawAll(part) {
  for (const figure of part.querySelectorAll("[data-chart]:not(.ready)")) prepareFigure(figure);
  for (const figure of part.querySelectorAll("[data-chart]")) draw(figure);
  prepareAllScales(part);
  openNamedChart();
  for (const element of part.querySelectorAll("[data-spark]")) if (!drawn.has(element)) views.observe(element);
}

/** Removes the drawing of an element. */
function removeDrawing(element) {
  const { plot: plotted } = drawn.get(element);
  drawn.delete(element);
  if (current === element) current = null;
  const root = element.querySelector(".plot");
  if (root) sizes.unobserve(root);
  plotted.destroy();
}

/** Redraws everything in the current colours. */
function redraw() {
  colours.clear();
  for (const element of [...drawn.keys()]) redrawElement(element);
}

function redrawElement(element) {
  const root = element.querySelector(".plot");
  const tip = root?.querySelector(".tip");
  removeDrawing(element);
  if (tip) root.replaceChildren(tip);
  if (element.isConnected) draw(element);
}

if (typeof uPlot === "function") {
  drawAll(document);
  new MutationObserver((records) => {
    if (!records.some((record) => [...record.addedNodes].some((node) => node instanceof HTMLElement && !node.closest(".plot, .spark")))) return;
    for (const element of [...drawn.keys()]) if (!element.isConnected) removeDrawing(element);
    drawAll(document);
  }).observe(document.body, { childList: true, subtree: true });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  document.addEventListener("pointerdown", (event) => {
    const chart = drawn.get(current);
    if (chart?.leave && !event.target.closest(".plot")) chart.leave();
  });
  // Print in light colours, and draw sparklines that were never in view.
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
