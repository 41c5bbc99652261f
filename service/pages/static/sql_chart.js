"use strict";
// The chart of an answer: a column of numbers over time, over numbers or over names, as a figure that `charts.js` draws.

const MOST_BARS = 60, MOST_SERIES = 7, MOST_NAME = 60;
const NUMERIC = /^(U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER|FLOAT|DOUBLE|DECIMAL)/;
const TEMPORAL = /^(DATE|TIMESTAMP)/;
const written = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

/** The columns of a chart: the one along the bottom, the numbers to choose from, and one that tells lines apart. */
function plan(columns, rows) {
  const across = columns.find((one) => TEMPORAL.test(one.type)) || columns[0];
  const measures = columns.filter((one) => one !== across && NUMERIC.test(one.type));
  const places = rows.map((row) => String(row[across.name]));
  const repeats = new Set(places).size < places.length;
  const series = repeats && columns.find((one) => one !== across && /^(VARCHAR|ENUM|BOOLEAN)/.test(one.type));
  return { across, measures, series, ordered: TEMPORAL.test(across.type) || NUMERIC.test(across.type) };
}

/** The points of an answer: where each stands, its label, its number and its series. */
function pointsOf(rows, measure, { across, series }) {
  const isTime = TEMPORAL.test(across.type);
  return rows.map((row) => {
    const label = typeof row[across.name] === "object" ? JSON.stringify(row[across.name]) : String(row[across.name]);
    return {
      label: isTime ? label.replace(/T00:00:00(\.0+)?Z$/, "").replace("T", " ") : label,
      place: isTime ? Date.parse(label) / 1000 : Number(row[across.name]),
      value: Number(row[measure]),
      series: series ? String(row[series.name]) : "",
    };
  });
}

/** The points that a chart has room for, and what is left out in words. */
function chosenOf(points, form, series) {
  const notes = [];
  const names = [...new Set(points.map((one) => one.series))];
  let chosen = points;
  if (names.length > MOST_SERIES) {
    const kept = new Set(names.slice(0, MOST_SERIES));
    chosen = chosen.filter((one) => kept.has(one.series));
    notes.push(`The first ${MOST_SERIES} of ${names.length} by ${series.name}.`);
  }
  const labels = [...new Set(chosen.map((one) => one.label))];
  if (form === "bar" && labels.length > MOST_BARS) {
    const kept = new Set(labels.slice(0, MOST_BARS));
    chosen = chosen.filter((one) => kept.has(one.label));
    notes.push(`The first ${MOST_BARS} of ${labels.length} bars.`);
  }
  return { chosen, notes };
}

function cellOf(kind, text) {
  const made = document.createElement(kind);
  made.textContent = text;
  return made;
}

/** The table below a chart, one row for each label. */
function tableOf(title, first, names, labels, columns) {
  const details = document.createElement("details");
  details.className = "table";
  const scroll = document.createElement("div");
  scroll.className = "scroll";
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "group");
  scroll.setAttribute("aria-label", title);
  const table = document.createElement("table");
  table.createTHead().insertRow().append(...[first, ...names].map((name) => Object.assign(cellOf("th", plain(name)), { scope: "col" })));
  const body = table.createTBody();
  labels.forEach((label, place) => {
    const cells = columns.map((values) => Object.assign(cellOf("td", values[place] === null ? "\u2013" : written.format(values[place])), { className: "number" }));
    body.insertRow().append(Object.assign(cellOf("th", plain(label)), { scope: "row" }), ...cells);
  });
  scroll.append(table);
  details.append(cellOf("summary", "As a table"), scroll);
  return details;
}

/** The names of lines or bars with their colours. */
function legendOf(names) {
  const legend = document.createElement("ul");
  legend.className = "legend";
  legend.append(...names.map((name, part) => {
    const entry = document.createElement("li");
    const swatch = document.createElement("span");
    swatch.className = `swatch part-${part}`;
    entry.append(swatch, ` ${plain(name.length > MOST_NAME ? `${name.slice(0, MOST_NAME - 1)}…` : name)}`);
    return entry;
  }));
  return legend;
}

/** A figure of points. */
function figureOf(title, points, form, { across, ordered }, measure) {
  const labels = [...new Map(points.map((one) => [one.label, one.place]))];
  if (ordered) labels.sort((one, other) => one[1] - other[1]);
  const names = [...new Set(points.map((one) => one.series))];
  const at = new Map(labels.map(([label], place) => [label, place]));
  const columns = names.map((name) => {
    const values = Array.from({ length: labels.length }, () => null);
    for (const one of points) if (one.series === name) values[at.get(one.label)] = one.value;
    return values;
  });
  const places = labels.map(([, place]) => place);
  const room = (places.at(-1) - places[0]) * 0.02;
  const isScaled = form === "line" && ordered && places.at(-1) > places[0];
  const spec = {
    kind: form === "line" ? "line" : "groups",
    series: columns,
    spans: true,
    ...(isScaled
      ? { places, isTime: TEMPORAL.test(across.type), ends: [places[0] - room, places.at(-1) + room] }
      : { labels: labels.map(([label]) => plain(label)) }),
  };
  const figure = document.createElement("figure");
  figure.className = "drawn";
  figure.setAttribute("aria-label", plain(title));
  figure.dataset.chart = JSON.stringify(spec);
  const named = names.map((name) => (name === "" ? measure : name));
  if (names.length > 1) figure.append(legendOf(named));
  figure.append(tableOf(plain(title), across.name, named, labels.map(([label]) => label), columns));
  return figure;
}

/** Shows the chart of an answer in a place of the page; says there what was left out. */
function showChart(place, answer, measure, form) {
  const planned = plan(answer.columns, answer.rows);
  const known = answer.rows.filter((row) => Number.isFinite(Number(row[measure] ?? NaN)) && row[planned.across.name] !== null);
  const { chosen, notes } = chosenOf(pointsOf(known, measure, planned), form, planned.series);
  if (known.length < answer.rows.length) notes.push(`${answer.rows.length - known.length} rows without a number are not shown.`);
  const note = document.createElement("p");
  note.className = "soft";
  note.textContent = chosen.length ? plain(notes.join(" ")) : "This column has no numbers.";
  place.replaceChildren(...(chosen.length ? [figureOf(`${measure} by ${planned.across.name}`, chosen, form, planned, measure)] : []), note);
}
