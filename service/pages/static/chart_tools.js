"use strict";
// What a reader does with a chart: hides parts by its legend, changes the scale of all charts of the page, opens one at full size with its
// table, and saves it as a picture or a table. Hidden parts and the scale are kept in this browser; a chart at full size is in the address.

const SCALES = [["fit", "Fit", "Each axis fits its numbers"], ["common", "Common", "Charts of measures with the same bounds share an axis"], ["whole", "Full range", "Each axis shows the whole measure, such as 0 to 1"]];
const HIDDEN_KEY = "driftline.hidden";
const SCALE_KEY = "driftline.scale";
const MAX_REMEMBERED_CHARTS = 200;
const FULL_MARK = "#full=";

let hiddenParts = readStored(HIDDEN_KEY, {}); // names of hidden parts, by page and chart
let chartScale = readStored(SCALE_KEY, "fit");

/** Returns the key under which the hidden parts of a chart are kept. */
function chartKey(figure) {
  return `${location.pathname} ${figure.dataset.key || figure.getAttribute("aria-label")}`;
}

/** Returns the entries of a chart's legend: what they stand for, their name, and their element. */
function readLegend(figure) {
  return [...figure.querySelectorAll(".legend > li")].map((element) => ({
    kind: element.querySelector(".swatch").className.replace("swatch ", ""), name: element.textContent.trim(), element,
  }));
}

/** Returns what a chart shows, without its hidden parts and with the axis of the chosen scale. */
function readSpec(figure) {
  const spec = hideParts(JSON.parse(figure.dataset.chart), figure);
  spec.isFull = Boolean(figure.closest("dialog"));
  if (isMeasure(spec) && chartScale === "whole") spec.range = spec.limits;
  if (isMeasure(spec) && chartScale === "common") {
    const limits = String(spec.limits);
    const ranges = [...document.querySelectorAll("main [data-chart]")].map((other) => hideParts(JSON.parse(other.dataset.chart), other))
      .filter((other) => isMeasure(other) && String(other.limits) === limits)
      .map((other) => valueRange(other, buildLayers(other, other.labels.length).map(([values]) => values)));
    if (ranges.length) spec.range = [Math.min(...ranges.map(([low]) => low)), Math.max(...ranges.map(([, high]) => high))];
  }
  return spec;
}

function isMeasure(spec) {
  return Boolean(spec.limits && spec.limits[0] !== null && spec.limits[1] !== null);
}

function hideParts(spec, figure) {
  const names = new Set(hiddenParts[chartKey(figure)]);
  for (const { kind, name } of names.size ? readLegend(figure) : []) {
    if (!names.has(name)) continue;
    const part = /^part-(\d)$/.exec(kind);
    if (part || kind === "line") spec.series[part ? Number(part[1]) : 0].fill(null);
    else if (kind === "bad" || kind === "marked") spec.marked = [];
    else if (kind.startsWith("mark ")) spec.marks = spec.marks.filter(([, mark]) => mark !== kind.slice(5));
    else delete spec[kind];
  }
  return spec;
}

/** Shows or hides a part of a chart, or shows only this one. */
function togglePart(figure, name, isOnly) {
  const key = chartKey(figure);
  const names = readLegend(figure).map((entry) => entry.name);
  const hidden = new Set(hiddenParts[key]);
  if (isOnly) for (const other of names) hidden[other === name ? "delete" : "add"](other);
  else if (!hidden.delete(name)) hidden.add(name);
  if (names.every((other) => hidden.has(other)) && names.length > 1) hidden.clear(); // hiding the last part shows all again
  delete hiddenParts[key]; // the newest choice goes last, and the oldest are forgotten
  if (hidden.size) hiddenParts[key] = [...hidden];
  hiddenParts = Object.fromEntries(Object.entries(hiddenParts).slice(-MAX_REMEMBERED_CHARTS));
  writeStored(HIDDEN_KEY, hiddenParts);
  for (const other of document.querySelectorAll("[data-chart].ready")) if (chartKey(other) === key) { showPressed(other); redrawElement(other); }
}

function showPressed(figure) {
  const hidden = new Set(hiddenParts[chartKey(figure)]);
  for (const { name, element } of readLegend(figure)) element.firstElementChild.setAttribute("aria-pressed", String(!hidden.has(name)));
}

function createButton(text, name, title, onClick) {
  const button = createElement("button", name, text);
  button.type = "button";
  if (title) button.title = title;
  button.onclick = onClick;
  return button;
}

/** Makes the legend of a chart clickable, and adds the button that opens it at full size. */
function prepareTools(figure) {
  figure.dataset.key ||= figure.id;
  for (const { name, element } of readLegend(figure)) {
    const button = createButton("", "part", "Click: show or hide. Shift and click: show only this.", (event) => togglePart(figure, name, event.shiftKey));
    button.append(...element.childNodes);
    element.append(button);
  }
  showPressed(figure);
  if (figure.closest("dialog")) return;
  const tools = createElement("span", "tools");
  if (document.getElementById("annotate") && JSON.parse(figure.dataset.chart).times?.from) {
    // A click by keyboard has no place on the chart: the form asks for the time.
    tools.append(createButton("Annotate", "quiet", "Mark a time or a range on all charts of the project", (event) => (event.detail ? pickTime(figure) : showAnnotationForm())));
  }
  tools.append(createButton("Full size", "quiet", "", () => showFull(figure)));
  figure.querySelector("details").before(tools);
}

/** Lets the reader click a time of a chart, or drag over a range, and opens the form for it. */
function pickTime(figure) {
  const { plot: plotted } = drawn.get(figure);
  const root = figure.querySelector(".plot");
  const { from: start, step } = JSON.parse(figure.dataset.chart).times;
  const hint = createElement("p", "hint", "Click a time, or drag over a range. Esc cancels.");
  const range = createElement("span", "picked");
  const listeners = new AbortController();
  const place = (event) => Math.min(Math.max(event.clientX - plotted.over.getBoundingClientRect().left, 0), plotted.over.clientWidth);
  const toSeconds = (left) => start + (plotted.posToVal(left, "x") + 0.5) * step;
  const stop = () => {
    listeners.abort();
    root.classList.remove("picking");
    hint.remove();
    range.remove();
  };
  let from = null;
  // Captured before the chart sees them, where a click zooms in.
  const on = (kind, act) => document.addEventListener(kind, (event) => {
    if (event.key === "Escape" || (kind === "pointerdown" && !plotted.over.contains(event.target))) { stop(); return; }
    if (event.key || (from === null && !plotted.over.contains(event.target))) return;
    event.preventDefault();
    event.stopPropagation();
    act(place(event));
  }, { capture: true, signal: listeners.signal });
  on("keydown", () => {});
  on("pointerdown", (left) => { from = left; });
  on("pointermove", (left) => {
    if (from === null) return;
    range.style.left = `${plotted.over.offsetLeft + Math.min(from, left)}px`;
    range.style.width = `${Math.abs(left - from)}px`;
  });
  on("pointerup", (left) => { range.dataset.end = left; });
  on("click", (left) => {
    const [first, last] = [Math.min(from, left), Math.max(from, left)];
    stop();
    showAnnotationForm(toSeconds(first), last - first > 4 ? toSeconds(last) : null, step);
  });
  root.classList.add("picking");
  root.append(hint, range);
}

/** Shows the form of a new annotation, with the times that were picked, in seconds and rounded as far as a click is exact. */
function showAnnotationForm(from = null, until = null, step = 3600) {
  const unit = step > 3600 ? 3600 : 300;
  const format = (seconds) => new Date(Math.round(seconds / unit) * unit * 1000).toISOString().slice(0, 16);
  const dialog = createDialog("Annotate");
  dialog.append(createElement("h2", "", "Annotate all charts of the project"), document.querySelector("#annotate > form").cloneNode(true));
  const { text, at, until: end } = dialog.querySelector("form").elements;
  at.value = format(Math.min(from ?? Infinity, Date.now() / 1000));
  if (until !== null) end.value = format(until);
  dialog.querySelector("[data-close]").onclick = () => dialog.close();
  dialog.showModal();
  text.focus();
}

function chooseScale(name) {
  chartScale = name;
  writeStored(SCALE_KEY, name);
  for (const field of document.querySelectorAll(".scales input")) field.checked = field.value === name;
  redraw();
}

/** Fills the place for the switch of the scale, if a chart of the page has a measure with bounds. */
function prepareScales(place) {
  const name = place.closest("dialog") ? "full-scale" : "scale";
  const legend = createElement("legend", "", "Scale");
  const choices = SCALES.map(([value, text, title]) => {
    const label = createElement("label");
    label.title = title;
    const field = Object.assign(document.createElement("input"), { type: "radio", name, value, checked: value === chartScale });
    field.onchange = () => chooseScale(value);
    label.append(field, createElement("span", "", text));
    return label;
  });
  place.replaceChildren(legend, ...choices);
  place.hidden = false;
}

function prepareAllScales(part) {
  const figures = [...document.querySelectorAll("[data-chart]")];
  if (!figures.some((figure) => isMeasure(JSON.parse(figure.dataset.chart)))) return;
  for (const place of part.querySelectorAll("fieldset.scales:empty")) prepareScales(place);
}

/** Adds the intervals, which are drawn at full size only, to the legend of a chart. */
function addIntervalEntry(figure) {
  const legend = figure.querySelector(".legend") ?? createElement("ul", "legend");
  const entry = document.createElement("li");
  entry.append(createElement("span", "swatch half"), " 95% interval");
  legend.append(entry);
  figure.querySelector("details").before(legend);
}

/** Shows a chart at full size with its table, in a dialog. */
function showFull(figure) {
  const dialog = createDialog(figure.getAttribute("aria-label"));
  dialog.className = "full";
  const copy = figure.cloneNode(true);
  copy.querySelectorAll(".plot, .said, .tools").forEach((element) => element.remove());
  copy.querySelectorAll("button.part").forEach((button) => button.replaceWith(...button.childNodes));
  copy.classList.remove("ready");
  copy.id = "";
  copy.querySelector("details").id = "";
  if (JSON.parse(figure.dataset.chart).half) addIntervalEntry(copy);
  const head = createElement("div", "head");
  const close = createButton("Close", "second", "", () => dialog.close());
  head.append(createElement("h2", "", figure.getAttribute("aria-label")), close);
  const scales = createElement("fieldset", "scales");
  scales.hidden = true;
  const saves = createElement("p", "row");
  const files = { PNG: () => savePicture(copy, "png"), SVG: () => savePicture(copy, "svg"), CSV: () => saveTable(copy) };
  saves.append(createElement("span", "soft", "Save as"), ...Object.entries(files).map(([kind, save]) => createButton(kind, "second", "", save)));
  const bar = createElement("div", "bar");
  bar.append(scales, saves);
  dialog.append(head, createElement("p", "soft", describeRange(figure) + describeZone(figure)), bar, copy);
  if (isMeasure(JSON.parse(figure.dataset.chart))) prepareScales(scales);
  const address = location.pathname + location.search;
  if (figure.id) history.replaceState(null, "", address + FULL_MARK + encodeURIComponent(figure.id));
  dialog.addEventListener("close", () => {
    history.replaceState(null, "", address);
    figure.querySelector(".tools button")?.focus();
  });
  dialog.showModal();
}

/** Describes the period or the points of a chart by its first and last row. */
function describeRange(figure) {
  const labels = readRows(figure).map((row) => row.label);
  return labels.length > 1 ? `${labels[0]} to ${labels.at(-1)}` : labels.join("");
}

/** Describes the zone of the times of a chart; empty if its points are no times, or if their labels say it. */
function describeZone(figure) {
  const isTime = JSON.parse(figure.dataset.chart).time && !describeRange(figure).endsWith("UTC");
  return isTime ? ` (${document.querySelector("[data-zones]")?.value || "UTC"})` : "";
}

/** Opens the chart that the address names at full size, once it is on the page. */
function openNamedChart() {
  if (!location.hash.startsWith(FULL_MARK) || document.querySelector("dialog[open]")) return;
  const figure = document.getElementById(decodeURIComponent(location.hash.slice(FULL_MARK.length)));
  if (figure?.matches("[data-chart].ready")) showFull(figure);
}

function saveFile(figure, kind, address) {
  const link = document.createElement("a");
  const name = [document.querySelector("h1")?.textContent, figure.getAttribute("aria-label")].join(" ");
  link.download = `${name.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 80)}.${kind}`;
  link.href = address;
  link.click();
}

const textAddress = (type, text) => `data:${type};charset=utf-8,${encodeURIComponent(text)}`;

/** Saves the table of a chart. A text that a spreadsheet would run as a formula gets an apostrophe in front. */
function saveTable(figure) {
  const cells = [...figure.querySelectorAll("tr")].map((row) => [...row.cells].map((cell) => cell.textContent.trim()));
  const quote = (text) => `"${(/^[=+@\t]|^-(?!\d)/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
  saveFile(figure, "csv", textAddress("text/csv", cells.map((row) => `${row.map(quote).join(",")}\r\n`).join("")));
}

/** Saves a chart as a picture with its title, its range and its legend. */
async function savePicture(figure, kind) {
  const picture = drawSvg(figure);
  const address = textAddress("image/svg+xml", new XMLSerializer().serializeToString(picture));
  if (kind === "svg") { saveFile(figure, kind, address); return; }
  const image = new Image();
  image.src = address;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [2 * image.width, 2 * image.height]; // sharp on dense screens and in print
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  saveFile(figure, kind, canvas.toDataURL("image/png"));
}

const SVG = "http://www.w3.org/2000/svg";
const PICTURE_FONT = "system-ui, -apple-system, Segoe UI, DejaVu Sans, sans-serif";
const LINE_HEIGHT = 20;
// Paths around the middle of a shape, and along a line of a legend.
const SHAPE_PATHS = { marked: "m0 -5l5 5l-5 5l-5 -5z", "mark deployment": "m-4 -4h8l-4 8z", "mark annotation": "m-4 4h8l-4 -8z", "mark judge": "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z" };
const SWATCH_PATHS = { line: "h12", previous: "h12", before: "h12", half: "m6 -6v12" };

/** Returns the picture of a drawn chart: the same axes, lines, bars, bands and marks, between its title and its legend. */
function drawSvg(figure) {
  const { plot: plotted } = drawn.get(figure);
  const spec = readSpec(figure);
  const add = (parent, kind, attributes, text = "") => {
    const element = document.createElementNS(SVG, kind);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, typeof value === "number" ? Math.round(value * 100) / 100 : value);
    element.textContent = text;
    parent.append(element);
    return element;
  };
  const margin = 16;
  const width = plotted.width + 2 * margin;
  const svg = document.createElementNS(SVG, "svg");
  add(svg, "rect", { width: "100%", height: "100%", fill: colour("surface") });
  const label = (parent, x, y, text, size, attributes = {}) => add(parent, "text", { x, y, "font-size": size, "font-family": PICTURE_FONT, fill: colour("soft"), ...attributes }, text);
  label(svg, margin, 28, [document.querySelector("h1")?.textContent.trim(), figure.getAttribute("aria-label")].filter(Boolean).join(" · "), 16, { fill: colour("text"), "font-weight": 600 });
  label(svg, margin, 48, describeRange(figure) + describeZone(figure), 12);

  const area = { left: plotted.over.offsetLeft + margin, top: plotted.over.offsetTop + 60, width: plotted.over.clientWidth, height: plotted.over.clientHeight };
  const x = (position) => area.left + plotted.valToPos(position, "x");
  const y = (value) => area.top + plotted.valToPos(value, "y");
  const [columns, rows] = plotted.axes;
  rows._splits.forEach((value, index) => {
    add(svg, "line", { x1: area.left, x2: area.left + area.width, y1: y(value), y2: y(value), stroke: colour("line") });
    label(svg, area.left - 6, y(value) + 4, rows._values[index], 11, { "text-anchor": "end" });
  });
  columns._splits.forEach((position, index) => label(svg, x(position), area.top + area.height + 16, columns._values[index], 11, { "text-anchor": "middle" }));
  const clip = add(svg, "clipPath", { id: "area" });
  add(clip, "rect", { x: area.left, y: area.top - 10, width: area.width, height: area.height + 10 });
  const inside = add(svg, "g", { "clip-path": "url(#area)" });
  const rect = (from, to, upper, lower, attributes) => add(inside, "rect", { x: from, y: upper, width: Math.max(to - from, 0), height: Math.max(lower - upper, 1), ...attributes });
  const level = (from, to, value, attributes) => add(inside, "line", { x1: x(from), x2: x(to), y1: y(value), y2: y(value), ...attributes });
  for (const [first, last, low, mean, high] of spec.band || []) {
    rect(x(first - 0.5), x(last + 0.5), y(high), y(low), { fill: colour("accent"), "fill-opacity": 0.14 });
    level(first - 0.5, last + 0.5, mean, { stroke: colour("accent"), "stroke-dasharray": "4 4", "stroke-opacity": 0.7 });
  }
  if (spec.kind === "line") for (const index of spec.marked || []) rect(x(index - 0.5), x(index + 0.5), area.top, area.top + area.height, { fill: colour("bad"), "fill-opacity": 0.13 });
  (spec.before || []).forEach((value, index) => { if (value !== null) level(index - 0.5, index + 0.5, value, { stroke: colour("bad"), "stroke-width": 1.5, "stroke-dasharray": "2 4" }); });

  const positions = plotted.data[0];
  buildLayers(spec, positions.length).forEach(([values, style], layer) => {
    if (style.fill) {
      const parts = spec.kind === "groups" ? spec.series.length : 1;
      const slot = 0.72 / parts;
      values.forEach((value, index) => {
        if (value === null || value === undefined) return;
        const from = positions[index] - 0.36 + (parts > 1 ? layer * slot : 0);
        rect(x(from), x(from + slot), Math.min(y(value), y(0)), Math.max(y(value), y(0)), { fill: style.fill });
      });
      return;
    }
    let path = "";
    let isApart = true;
    values.forEach((value, index) => {
      if (value === null || value === undefined) { isApart = isApart || !style.spanGaps; return; }
      const [left, top] = [x(positions[index]).toFixed(1), y(value).toFixed(1)];
      path += `${isApart ? "M" : "L"}${left} ${top}`;
      isApart = false;
      if (style.points.show !== false) add(inside, "circle", { cx: left, cy: top, r: 2.5, fill: style.stroke });
    });
    add(inside, "path", { d: path, fill: "none", stroke: style.stroke, "stroke-width": style.width, "stroke-dasharray": (style.dash || []).join(" ") || "none", "stroke-linejoin": "round" });
  });
  if (spec.kind === "line") {
    for (const index of spec.marked || []) {
      const value = spec.series[0][index];
      if (value !== null) add(inside, "path", { d: `M${x(index)} ${y(value)}${SHAPE_PATHS.marked}`, fill: colour("bad") });
    }
  }
  for (const [index, low, high] of listIntervals(spec)) add(inside, "line", { x1: x(index), x2: x(index), y1: y(low), y2: y(high), stroke: colour("accent"), "stroke-width": 1.5, "stroke-opacity": 0.55 });
  for (const { position, end, kind, text, shift } of placeMarks(spec, x, area.left, area.left + area.width)) {
    const stroke = colour(MARK_COLOURS[kind]);
    if (end !== undefined) rect(x(position), x(end), area.top, area.top + area.height, { fill: stroke, "fill-opacity": 0.12 });
    add(inside, "line", { x1: x(position), x2: x(position), y1: area.top, y2: area.top + area.height, stroke, "stroke-width": 1.5, "stroke-dasharray": "5 3" });
    add(svg, "path", { d: `M${x(position)} ${area.top - 4}${SHAPE_PATHS[`mark ${kind}`] ?? "m-4 -4h8v8h-8z"}`, fill: stroke });
    label(svg, x(position) + shift, area.top - 3, text, 11, { fill: stroke });
  }

  let [left, top] = [margin, area.top + area.height + 44];
  const hidden = new Set(hiddenParts[chartKey(figure)]);
  for (const { kind, name, element } of readLegend(figure)) {
    if (hidden.has(name)) continue;
    const room = 24 + measureText(name, 12);
    if (left > margin && left + room > width - margin) [left, top] = [margin, top + LINE_HEIGHT];
    const style = getComputedStyle(element.querySelector(".swatch"));
    if (SWATCH_PATHS[kind]) add(svg, "path", { d: `M${left} ${top - 4}${SWATCH_PATHS[kind]}`, fill: "none", stroke: style.borderTopColor, "stroke-width": 2, "stroke-dasharray": kind === "line" || kind === "half" ? "none" : "2 2" });
    else add(svg, "path", { d: `M${left + 5} ${top - 4}${SHAPE_PATHS[kind] ?? "m-5 -5h10v10h-10z"}`, fill: style.backgroundColor });
    label(svg, left + 16, top, name, 12, { fill: colour("text") });
    left += room + 12;
  }
  const height = top + margin;
  for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) svg.setAttribute(name, value);
  return svg;
}
