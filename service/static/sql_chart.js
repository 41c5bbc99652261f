"use strict";
// A chart of an answer: a column of numbers over time, over numbers or over names, made of SVG without a library.

const SVG = "http://www.w3.org/2000/svg";
const WIDEST = 800, NARROWEST = 320, HIGH = 280, LEFT = 64, BOTTOM = 34, TOP = 12, RIGHT = 12;
const MOST_BARS = 60, MOST_SERIES = 7, MOST_DOTS = 120;
const NUMERIC = /^(U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER|FLOAT|DOUBLE|DECIMAL)/;
const TEMPORAL = /^(DATE|TIMESTAMP)/;

function element(name, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = plain(text);
  return made;
}

/** The columns of a chart: the one along the bottom, the numbers to choose from, and one that tells lines apart. */
function plan(columns, rows) {
  const across = columns.find((one) => TEMPORAL.test(one.type)) || columns[0];
  const measures = columns.filter((one) => one !== across && NUMERIC.test(one.type));
  const places = rows.map((row) => String(row[across.name]));
  const repeats = new Set(places).size < places.length;
  const series = repeats && columns.find((one) => one !== across && /^(VARCHAR|ENUM|BOOLEAN)/.test(one.type));
  return { across, measures, series, ordered: TEMPORAL.test(across.type) || NUMERIC.test(across.type) };
}

const written = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

/** Round steps from one number to another, and a little beyond. */
function ticks(low, high) {
  const span = high - low || Math.abs(high) || 1;
  const rough = span / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((one) => one * power >= rough) * power;
  const found = [];
  for (let at = Math.floor(low / step); at * step < high + step; at += 1) found.push(at * step);
  return found.length > 1 ? found : [found[0] - step, found[0], found[0] + step];
}

/** Lines or bars with their axes, of points {place, label, value, series}; the numbers are in the table below. */
function drawn(title, points, form, ordered, wide) {
  const picture = element("svg", { class: "chart", viewBox: `0 0 ${wide} ${HIGH}`, role: "img", "aria-label": title });
  const values = points.map((one) => one.value);
  const steps = ticks(form === "bar" ? Math.min(0, ...values) : Math.min(...values), Math.max(form === "bar" ? 0 : -Infinity, ...values));
  const [low, high] = [steps[0], steps.at(-1)];
  const y = (value) => TOP + ((high - value) / (high - low)) * (HIGH - TOP - BOTTOM);
  for (const step of steps) {
    picture.append(element("line", { class: "grid", x1: LEFT, x2: wide - RIGHT, y1: y(step), y2: y(step) }));
    picture.append(element("text", { x: LEFT - 6, y: y(step) + 4, "text-anchor": "end" }, written.format(step)));
  }
  const labels = [...new Map(points.map((one) => [one.label, one.place])).entries()];
  if (ordered) labels.sort((one, other) => one[1] - other[1]);
  const slot = (wide - LEFT - RIGHT) / labels.length;
  const [first, last] = [labels[0][1], labels.at(-1)[1]];
  const along = new Map(labels.map(([label, place], number) => [
    label,
    form === "line" && ordered && last > first
      ? LEFT + 8 + ((place - first) / (last - first)) * (wide - LEFT - RIGHT - 16)
      : LEFT + (number + 0.5) * slot,
  ]));
  const every = Math.ceil(labels.length / Math.max(2, Math.floor((wide - LEFT) / 100)));
  labels.forEach(([label], number) => {
    if (number % every) return;
    const short = label.length > 16 ? `${label.slice(0, 15)}…` : label;
    picture.append(element("text", { x: along.get(label), y: HIGH - 12, "text-anchor": along.get(label) > wide - 40 ? "end" : "middle" }, short));
  });
  const names = [...new Set(points.map((one) => one.series))];
  names.forEach((name, number) => {
    const own = points.filter((one) => one.series === name);
    if (ordered) own.sort((one, other) => one.place - other.place);
    const part = `part-${number}`;
    if (form === "line") {
      const path = own.map((one) => `${along.get(one.label)},${y(one.value)}`).join(" ");
      picture.append(element("polyline", { class: `line stroke-${number}`, points: path }));
    }
    const width = (slot * 0.72) / names.length;
    for (const one of own) {
      const told = `${name === "" ? "" : `${name}, `}${one.label}: ${written.format(one.value)}`;
      const [x, from] = [along.get(one.label), y(Math.max(low, Math.min(0, high)))];
      const mark = form === "bar"
        ? element("rect", { class: part, x: x - slot * 0.36 + number * width, y: Math.min(from, y(one.value)), width, height: Math.max(0.5, Math.abs(from - y(one.value))) })
        : element("circle", { class: part, cx: x, cy: y(one.value), r: own.length > MOST_DOTS ? 1 : 3 });
      mark.append(element("title", {}, told));
      picture.append(mark);
    }
  });
  return { picture, names: names.filter((name) => name !== "") };
}

/** The chart of an answer in a place of the page; says there what was left out. */
function showChart(place, answer, measure, form) {
  const { across, series, ordered } = plan(answer.columns, answer.rows);
  const known = answer.rows.filter((row) => Number.isFinite(Number(row[measure] ?? NaN)) && row[across.name] !== null);
  let points = known.map((row) => {
    const label = typeof row[across.name] === "object" ? JSON.stringify(row[across.name]) : String(row[across.name]);
    return {
      label: TEMPORAL.test(across.type) ? label.replace(/T00:00:00(\.0+)?Z$/, "").replace("T", " ") : label,
      place: TEMPORAL.test(across.type) ? Date.parse(label) : Number(row[across.name]),
      value: Number(row[measure]),
      series: series ? String(row[series.name]) : "",
    };
  });
  const notes = [];
  const names = [...new Set(points.map((one) => one.series))];
  if (names.length > MOST_SERIES) {
    points = points.filter((one) => names.indexOf(one.series) < MOST_SERIES);
    notes.push(`The first ${MOST_SERIES} of ${names.length} by ${series.name}.`);
  }
  const labels = [...new Set(points.map((one) => one.label))];
  if (form === "bar" && labels.length > MOST_BARS) {
    const kept = new Set(labels.slice(0, MOST_BARS));
    points = points.filter((one) => kept.has(one.label));
    notes.push(`The first ${MOST_BARS} of ${labels.length} bars.`);
  }
  if (known.length < answer.rows.length) notes.push(`${answer.rows.length - known.length} rows without a number are left out.`);
  place.replaceChildren();
  if (points.length) {
    const made = drawn(`${measure} by ${across.name}`, points, form, ordered, Math.min(WIDEST, Math.max(NARROWEST, place.clientWidth)));
    place.append(made.picture);
    if (made.names.length) {
      const legend = document.createElement("ul");
      legend.className = "legend";
      made.names.forEach((name, number) => {
        const entry = document.createElement("li");
        const swatch = element("svg", { class: "chart swatch", width: 12, height: 12, "aria-hidden": "true" });
        swatch.append(element("rect", { class: `part-${number}`, width: 12, height: 12, rx: 3 }));
        entry.append(swatch, ` ${plain(name.length > 60 ? `${name.slice(0, 59)}…` : name)}`);
        legend.append(entry);
      });
      place.append(legend);
    }
  }
  const note = document.createElement("p");
  note.className = "soft";
  note.textContent = points.length ? plain(notes.join(" ")) : "This column has no numbers.";
  place.append(note);
}
