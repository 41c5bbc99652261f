"use strict";
// The chart of a result: a column of numbers over time, numbers or names, as a figure that `charts.js` draws.

const MAX_BARS = 60;
const MAX_SERIES = 7;
const MAX_NAME_LENGTH = 60;
const NUMERIC = /^(U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER|FLOAT|DOUBLE|DECIMAL)/;
const TEMPORAL = /^(DATE|TIMESTAMP)/;
const numberFormat = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

/** Chooses the columns of a chart: the x axis, the measures to choose from, and the column that names the series. */
function planChart(columns, rows) {
  const xColumn = columns.find((column) => TEMPORAL.test(column.type)) || columns[0];
  const measures = columns.filter((column) => column !== xColumn && NUMERIC.test(column.type));
  const xValues = rows.map((row) => String(row[xColumn.name]));
  const hasRepeats = new Set(xValues).size < xValues.length;
  const series = hasRepeats && columns.find((column) => column !== xColumn && /^(VARCHAR|ENUM|BOOLEAN)/.test(column.type));
  return { xColumn, measures, series, isOrdered: TEMPORAL.test(xColumn.type) || NUMERIC.test(xColumn.type) };
}

/** Returns the points of a result, each with its label, position, value and series. */
function buildPoints(rows, measure, { xColumn, series }) {
  const isTime = TEMPORAL.test(xColumn.type);
  return rows.map((row) => {
    const label = typeof row[xColumn.name] === "object" ? JSON.stringify(row[xColumn.name]) : String(row[xColumn.name]);
    return {
      label: isTime ? label.replace(/T00:00:00(\.0+)?Z$/, "").replace("T", " ") : label,
      position: isTime ? Date.parse(label) / 1000 : Number(row[xColumn.name]),
      value: Number(row[measure]),
      series: series ? String(row[series.name]) : "",
    };
  });
}

/** Returns the points that fit into a chart, and notes on those that do not. */
function limitPoints(points, form, series) {
  const notes = [];
  const names = [...new Set(points.map((point) => point.series))];
  let chosen = points;
  if (names.length > MAX_SERIES) {
    const kept = new Set(names.slice(0, MAX_SERIES));
    chosen = chosen.filter((point) => kept.has(point.series));
    notes.push(`The first ${MAX_SERIES} of ${names.length} by ${series.name}.`);
  }
  const labels = [...new Set(chosen.map((point) => point.label))];
  if (form === "bar" && labels.length > MAX_BARS) {
    const kept = new Set(labels.slice(0, MAX_BARS));
    chosen = chosen.filter((point) => kept.has(point.label));
    notes.push(`The first ${MAX_BARS} of ${labels.length} bars.`);
  }
  return { chosen, notes };
}

function createTextElement(kind, text) {
  const element = document.createElement(kind);
  element.textContent = text;
  return element;
}

/** Builds the table below a chart, one row per label. */
function buildChartTable(title, first, names, labels, columns) {
  const details = document.createElement("details");
  details.className = "table";
  const scroll = document.createElement("div");
  scroll.className = "scroll";
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "group");
  scroll.setAttribute("aria-label", title);
  const table = document.createElement("table");
  table.createTHead().insertRow().append(...[first, ...names].map((name) => Object.assign(createTextElement("th", plain(name)), { scope: "col" })));
  const body = table.createTBody();
  labels.forEach((label, index) => {
    const cells = columns.map((values) => Object.assign(createTextElement("td", values[index] === null ? "\u2013" : numberFormat.format(values[index])), { className: "number" }));
    body.insertRow().append(Object.assign(createTextElement("th", plain(label)), { scope: "row" }), ...cells);
  });
  scroll.append(table);
  details.append(createTextElement("summary", "As a table"), scroll);
  return details;
}

/** Builds the legend of the series. */
function buildLegend(names) {
  const legend = document.createElement("ul");
  legend.className = "legend";
  legend.append(...names.map((name, part) => {
    const entry = document.createElement("li");
    const swatch = document.createElement("span");
    swatch.className = `swatch part-${part}`;
    entry.append(swatch, ` ${plain(name.length > MAX_NAME_LENGTH ? `${name.slice(0, MAX_NAME_LENGTH - 1)}…` : name)}`);
    return entry;
  }));
  return legend;
}

/** Builds the figure of a chart. */
function buildFigure(title, points, form, { xColumn, isOrdered }, measure) {
  const labels = [...new Map(points.map((point) => [point.label, point.position]))];
  if (isOrdered) labels.sort(([, left], [, right]) => left - right);
  const names = [...new Set(points.map((point) => point.series))];
  const indexes = new Map(labels.map(([label], index) => [label, index]));
  const columns = names.map((name) => {
    const values = Array.from({ length: labels.length }, () => null);
    for (const point of points) if (point.series === name) values[indexes.get(point.label)] = point.value;
    return values;
  });
  const positions = labels.map(([, position]) => position);
  const margin = (positions.at(-1) - positions[0]) * 0.02;
  const isScaled = form === "line" && isOrdered && positions.at(-1) > positions[0];
  const spec = {
    kind: form === "line" ? "line" : "groups",
    series: columns,
    spans: true,
    ...(isScaled
      ? { places: positions, isTime: TEMPORAL.test(xColumn.type), ends: [positions[0] - margin, positions.at(-1) + margin] }
      : { labels: labels.map(([label]) => plain(label)) }),
  };
  const figure = document.createElement("figure");
  figure.className = "drawn";
  figure.setAttribute("aria-label", plain(title));
  figure.dataset.chart = JSON.stringify(spec);
  const seriesNames = names.map((name) => (name === "" ? measure : name));
  if (names.length > 1) figure.append(buildLegend(seriesNames));
  figure.append(buildChartTable(plain(title), xColumn.name, seriesNames, labels.map(([label]) => label), columns));
  return figure;
}

/** Shows the chart of a result in an element, with notes on what was left out. */
function showChart(container, answer, measure, form) {
  const plan = planChart(answer.columns, answer.rows);
  const numericRows = answer.rows.filter((row) => Number.isFinite(Number(row[measure] ?? NaN)) && row[plan.xColumn.name] !== null);
  const { chosen, notes } = limitPoints(buildPoints(numericRows, measure, plan), form, plan.series);
  if (numericRows.length < answer.rows.length) notes.push(`${answer.rows.length - numericRows.length} rows without a number are not shown.`);
  const note = document.createElement("p");
  note.className = "soft";
  note.textContent = chosen.length ? plain(notes.join(" ")) : "This column has no numbers.";
  container.replaceChildren(...(chosen.length ? [buildFigure(`${measure} by ${plan.xColumn.name}`, chosen, form, plan, measure)] : []), note);
}
