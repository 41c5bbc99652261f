"use strict";
// Draws one chart with uPlot: lines or bars at positions 0, 1, 2 …, with bands and marks.

const MAX_DOTTED_POINTS = 45; // with more points, only points without a neighbour have a dot
const HOURS_BETWEEN_LABELS = [1, 2, 3, 6, 12];
const MARK_COLOURS = { deployment: "accent", policy: "part-2", judge: "part-4", annotation: "text" };
const MAX_MARK_WIDTH = 110; // pixels of a mark's name on a small chart
const MIN_MARK_TEXT = 4; // characters of a cut name
const FORMS = {
  number: (value) => value.toLocaleString("en", { maximumFractionDigits: 4 }),
  large: (value) => value.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 4 }),
  usd: (value) => `$${value.toLocaleString("en", { maximumFractionDigits: 6 })}`,
  share: (value) => `${(100 * value).toLocaleString("en", { maximumFractionDigits: 2 })}%`,
};

const colours = new Map(); // of the current colour scheme; cleared when it changes

/** Returns a colour of the style sheet in the form that a canvas accepts. */
function colour(name) {
  if (!colours.has(name)) {
    const probe = document.createElement("span");
    probe.hidden = true;
    probe.style.color = `var(--${name})`;
    document.documentElement.append(probe);
    colours.set(name, getComputedStyle(probe).color);
    probe.remove();
  }
  return colours.get(name);
}

/** Formats a number on an axis. */
function formatTick(form, value) {
  return (form === "number" && Math.abs(value) >= 1e5 ? FORMS.large : FORMS[form])(value);
}

/** Formats times on an axis in UTC: as days, or with hours if they are not all midnights. */
function formatTimes(splits) {
  const areDays = splits.every((seconds) => seconds % 86400 === 0);
  return splits.map((seconds) => {
    const [day, clock] = new Date(seconds * 1000).toISOString().split("T");
    return areDays ? day : `${day.slice(5)} ${clock.slice(0, 5)}`;
  });
}

/** Returns the range of the values within the limits of the measure. Bars include 0. */
function valueRange(spec, columns) {
  const [min, max] = spec.limits || [null, null];
  const values = [...columns.flat(), ...(spec.before || []), ...listIntervals(spec).flatMap(([, low, high]) => [low, high]), ...(spec.reaches || []), ...(spec.band || []).flatMap((segment) => segment.slice(2))]
    .filter((value) => value !== null && value !== undefined)
    .map((value) => Math.min(Math.max(value, min ?? -Infinity), max ?? Infinity));
  const startsAtZero = spec.kind !== "line";
  if (startsAtZero || !values.length) values.push(0);
  const end = (limit, hard) => ({ pad: 0.08, hard: limit ?? hard, soft: startsAtZero ? 0 : null, mode: startsAtZero ? 1 : 0 });
  return uPlot.rangeNum(Math.min(...values), Math.max(...values), { min: end(min, -Infinity), max: end(max, Infinity) });
}

/** Returns the cumulative sums of the parts, so that each part is drawn on top of the previous ones. */
function stackSeries(series) {
  const sums = [];
  for (const part of series) sums.push(part.map((value, index) => (value ?? 0) + (sums.at(-1)?.[index] ?? 0)));
  return sums;
}

/** Replaces the values at all other indexes by null. */
function keepValues(values, isKept) {
  return values.map((value, index) => (isKept(index) ? value : null));
}

/** Returns the path builder of one part of grouped bars. Negative bars extend below 0. */
function groupedBars(part, parts) {
  return (u, series, first, last) => {
    const fill = new Path2D();
    const slot = u.valToPos(1, "x", true) - u.valToPos(0, "x", true);
    const width = (slot * 0.72) / parts;
    const zero = u.valToPos(0, "y", true);
    for (let index = first; index <= last; index += 1) {
      const value = u.data[series][index];
      if (value === null || value === undefined) continue;
      const top = u.valToPos(value, "y", true);
      fill.rect(u.valToPos(u.data[0][index], "x", true) - slot * 0.36 + part * width, Math.min(top, zero), width, Math.max(1, Math.abs(top - zero)));
    }
    return { stroke: null, fill, clip: null, flags: 0 };
  };
}

/** Returns the columns of numbers with their drawing options, back to front. */
function buildLayers(spec, count) {
  const dots = (show) => ({ show, size: 5.5, fill: colour("accent"), stroke: colour("accent") });
  const built = [];
  if (spec.kind === "bars") {
    const paths = uPlot.paths.bars({ size: [0.72, 64] });
    const marked = new Set(spec.marked || []);
    const sums = stackSeries(spec.series);
    sums.map((values, part) => [values, part]).reverse().forEach(([values, part]) => {
      built.push([keepValues(values, (index) => !marked.has(index)), { fill: colour(`part-${part}`), width: 0, paths, points: { show: false } }]);
    });
    if (marked.size) built.push([keepValues(sums.at(-1), (index) => marked.has(index)), { fill: colour("bad"), width: 0, paths, points: { show: false } }]);
  }
  if (spec.kind === "groups") {
    spec.series.forEach((values, part) => {
      built.push([values, { fill: colour(`part-${part}`), width: 0, paths: groupedBars(part, spec.series.length), points: { show: false } }]);
    });
  }
  if (spec.previous) built.push([spec.previous, { stroke: colour("soft"), width: 1.5, dash: [2, 3], alpha: 0.85, points: { show: false } }]);
  if (spec.kind === "line") {
    spec.series.forEach((values, part) => {
      const stroke = colour(spec.series.length > 1 ? `part-${part}` : "accent");
      built.push([values, { stroke, width: 2, spanGaps: Boolean(spec.spans), points: { ...dots(count <= MAX_DOTTED_POINTS ? true : undefined), fill: stroke, stroke } }]);
    });
  }
  return built;
}

const textContext = document.createElement("canvas").getContext("2d");

/** Returns the width of a text on a chart. */
function measureText(text, size) {
  textContext.font = `${size}px system-ui, sans-serif`;
  return textContext.measureText(text).width;
}

/** Cuts a text to a width; empty if hardly anything would be left. */
function cutToWidth(text, width) {
  let length = text.length;
  while (length > MIN_MARK_TEXT && measureText(`${text.slice(0, length)}…`, 11) > width) length -= 1;
  const cut = length < text.length ? `${text.slice(0, length).trimEnd()}…` : text;
  return measureText(cut, 11) <= width ? cut : "";
}

/** Returns the marks, each with as much of its name as fits right or left of it (`shift`); the tooltip has all of it. */
function placeMarks(spec, x, left, right) {
  const marks = spec.marks || [];
  let taken = left;
  return marks.map(([position, kind, name = "", end = undefined], index) => {
    const next = index + 1 < marks.length ? x(marks[index + 1][0]) - 6 : right + 12;
    const room = Math.min(next - x(position) - 6, spec.isFull ? Infinity : MAX_MARK_WIDTH);
    const isLeft = measureText(name, 11) > room && x(position) - 6 - taken > room;
    const text = cutToWidth(name, isLeft ? x(position) - 6 - taken : room);
    const width = measureText(text, 11);
    taken = x(position) + 6 + (isLeft ? 0 : width);
    return { position, kind, end, text, shift: isLeft ? -6 - width : 6 };
  });
}

/** Returns the 95% interval of each mean at full size: the index of its point, its lower and its upper end. */
function listIntervals(spec) {
  const [min, max] = spec.limits || [null, null];
  const ends = (spec.isFull && spec.half || []).map((half, index) => [index, Math.max(spec.series[0][index] - half, min ?? -Infinity), Math.min(spec.series[0][index] + half, max ?? Infinity), half, spec.series[0][index]]);
  return ends.filter(([, , , half, value]) => half !== null && value !== null);
}

/** Draws within the plot, and restores the state of the canvas. */
function drawClipped(u, draw) {
  u.ctx.save();
  u.ctx.beginPath();
  u.ctx.rect(u.bbox.left, u.bbox.top - 14 * uPlot.pxRatio, u.bbox.width + 18 * uPlot.pxRatio, u.bbox.height + 14 * uPlot.pxRatio);
  u.ctx.clip();
  draw(u.ctx, (position) => u.valToPos(position, "x", true), (value) => u.valToPos(value, "y", true), uPlot.pxRatio);
  u.ctx.restore();
}

function drawLevel(context, from, to, height, dash) {
  context.setLineDash(dash);
  context.beginPath();
  context.moveTo(from, height);
  context.lineTo(to, height);
  context.stroke();
}

/** Draws the bands, the background of marked points, and the level before a change. */
function drawBackground(spec, u) {
  drawClipped(u, (context, x, y, ratio) => {
    for (const [first, last, low, mean, high] of spec.band || []) {
      const left = x(first - 0.5);
      const right = x(last + 0.5);
      context.fillStyle = context.strokeStyle = colour("accent");
      context.globalAlpha = 0.14;
      const top = Math.max(y(high), u.bbox.top);
      context.fillRect(left, top, right - left, Math.max(y(low) - top, ratio));
      context.globalAlpha = 0.7;
      context.lineWidth = ratio;
      drawLevel(context, left, right, y(mean), [4 * ratio, 4 * ratio]);
    }
    context.globalAlpha = 0.13;
    context.fillStyle = colour("bad");
    if (spec.kind === "line") for (const index of spec.marked || []) context.fillRect(x(index - 0.5), u.bbox.top, x(index + 0.5) - x(index - 0.5), u.bbox.height);
    context.globalAlpha = 1;
    context.strokeStyle = colour("bad");
    context.lineWidth = 1.5 * ratio;
    (spec.before || []).forEach((value, index) => {
      if (value !== null) drawLevel(context, x(index - 0.5), x(index + 0.5), y(value), [2 * ratio, 4 * ratio]);
    });
  });
}

const MARK_SHAPES = {
  annotation: (context, x, y, size) => { context.moveTo(x - size, y + size); context.lineTo(x + size, y + size); context.lineTo(x, y - size); },
  deployment: (context, x, y, size) => { context.moveTo(x - size, y - size); context.lineTo(x + size, y - size); context.lineTo(x, y + size); },
  policy: (context, x, y, size) => context.rect(x - size, y - size, 2 * size, 2 * size),
  judge: (context, x, y, size) => context.arc(x, y, size, 0, 2 * Math.PI),
};

/** Draws the intervals of means as upright lines. */
function drawIntervals(spec, context, x, y, ratio) {
  context.strokeStyle = colour("accent");
  context.globalAlpha = 0.55;
  context.lineWidth = 1.5 * ratio;
  context.setLineDash([]);
  context.beginPath();
  for (const [index, low, high] of listIntervals(spec)) {
    context.moveTo(x(index), y(low));
    context.lineTo(x(index), y(high));
  }
  context.stroke();
  context.globalAlpha = 1;
}

/** Draws marked points as diamonds, and marks as lines with a shape for their kind. */
function drawForeground(spec, u) {
  drawClipped(u, (context, x, y, ratio) => {
    context.fillStyle = colour("bad");
    if (spec.kind === "line") {
      for (const index of spec.marked || []) {
        const value = spec.series[0][index];
        if (value === null) continue;
        const [centreX, centreY, size] = [x(index), y(value), 5 * ratio];
        context.beginPath();
        for (const [dx, dy] of [[0, -size], [size, 0], [0, size], [-size, 0]]) context.lineTo(centreX + dx, centreY + dy);
        context.fill();
      }
    }
    drawIntervals(spec, context, x, y, ratio);
    for (const { position, kind, end, text, shift } of placeMarks(spec, (value) => x(value) / ratio, u.bbox.left / ratio, (u.bbox.left + u.bbox.width) / ratio)) {
      context.strokeStyle = context.fillStyle = colour(MARK_COLOURS[kind]);
      context.lineWidth = 1.5 * ratio;
      context.setLineDash([5 * ratio, 3 * ratio]);
      context.beginPath();
      context.moveTo(x(position), u.bbox.top);
      context.lineTo(x(position), u.bbox.top + u.bbox.height);
      context.stroke();
      context.setLineDash([]);
      context.beginPath();
      MARK_SHAPES[kind](context, x(position), u.bbox.top - 4 * ratio, 3.5 * ratio);
      context.fill();
      context.font = `${11 * ratio}px system-ui, sans-serif`;
      context.textAlign = "left";
      context.textBaseline = "middle";
      context.fillText(text, x(position) + shift * ratio, u.bbox.top - 6 * ratio);
      if (end === undefined) continue;
      context.globalAlpha = 0.12;
      context.fillRect(x(position), u.bbox.top, x(end) - x(position), u.bbox.height);
      context.globalAlpha = 1;
    }
  });
}

/** Returns the options of the x axis: as many labels as fit, counted from the last point, or numbers. */
function buildXAxis(spec, count) {
  const style = { stroke: colour("soft"), font: "11px system-ui, sans-serif", ticks: { show: false }, grid: { show: false }, size: 24, gap: 4 };
  if (!spec.labels) return { ...style, space: 96, ...(spec.isTime ? { values: (_, splits) => formatTimes(splits) } : { values: (_, splits) => splits.map((value) => formatTick("number", value)) }) };
  const longest = Math.max(...spec.labels.map((label) => label.length));
  return {
    ...style,
    splits: (u) => {
      const { min, max } = u.scales.x;
      const shown = Array.from({ length: count }, (_, index) => index).filter((index) => index >= min && index <= max);
      const every = Math.max(1, Math.ceil(shown.length / Math.max(1, u.width / (Math.min(longest, 16) * 6.4 + 12))));
      if (spec.times?.step !== 3600) return shown.filter((index) => (shown.at(-1) - index) % every === 0);
      // Hours are labelled at round times of day. Midnight has its day as label.
      const round = HOURS_BETWEEN_LABELS.find((hours) => hours >= every) ?? 24;
      return shown.filter((index) => Number(spec.labels[index].match(/^\d+(?=:)/)?.[0] ?? 0) % round === 0);
    },
    values: (_, splits) => splits.map((index) => (spec.labels[index].length > 16 ? `${spec.labels[index].slice(0, 15)}…` : spec.labels[index])),
  };
}

/**
 * Draws a chart into an element. `onPoint` is called with the index of the point under the crosshair, or null, and `onSelect` with the
 * positions between which the mouse was dragged. `zoom` of the specification limits the positions shown.
 */
function plot(root, spec, onPoint, onSelect) {
  const positions = spec.places || spec.labels.map((_, index) => index);
  const built = buildLayers(spec, positions.length);
  const [low, high] = spec.range || valueRange(spec, built.map(([values]) => values));
  const ends = spec.ends || [-0.5, positions.length - 0.5];
  const font = "11px system-ui, sans-serif";
  const options = {
    width: root.clientWidth,
    height: root.clientHeight,
    padding: [16, 18, 0, 0],
    legend: { show: false },
    scales: { x: { time: Boolean(spec.isTime), range: () => spec.zoom || ends }, y: { range: () => [low, high] } },
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    axes: [
      buildXAxis(spec, positions.length),
      {
        stroke: colour("soft"), font, space: 32, gap: 4, ticks: { show: false }, grid: { stroke: colour("line"), width: 1 },
        ...(spec.digits === 0 ? { incrs: [1, 2, 5, ...[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12].flatMap((power) => [1, 2, 5].map((step) => step * 10 ** power))] } : {}),
        values: (_, splits) => splits.map((value) => formatTick(spec.form || "number", value)),
        size: (_, values) => 12 + 6.6 * Math.max(1, ...(values || []).map((text) => text.length)),
      },
    ],
    series: [{}, ...built.map(([, style]) => style)],
    cursor: {
      y: false,
      drag: { x: positions.length > 1, y: false, setScale: false, dist: 6 },
      points: { show: spec.kind === "line", size: 8 },
      bind: { dblclick: () => null },
      ...(spec.group ? { sync: { key: spec.group, scales: ["x", null], setSeries: false } } : {}),
    },
    hooks: {
      drawAxes: [(u) => drawBackground(spec, u)],
      draw: [(u) => drawForeground(spec, u)],
      setCursor: [(u) => onPoint(u, u.cursor.left < 0 ? null : u.cursor.idx ?? null)],
      setSelect: [({ select, posToVal }) => { if (select.width) onSelect(posToVal(select.left, "x"), posToVal(select.left + select.width, "x")); }],
    },
  };
  return new uPlot(options, [positions, ...built.map(([values]) => values)], root);
}

/** Draws a sparkline: a small line without axes, between `bounds` or as high as its values. */
function plotSpark(root, values, bounds) {
  const numbers = values.filter((value) => value !== null);
  const [low, high] = bounds ?? uPlot.rangeNum(Math.min(...numbers), Math.max(...numbers), 0.1, true);
  const none = { show: false };
  return new uPlot({
    width: root.clientWidth, height: root.clientHeight, padding: [2, 2, 2, 2], legend: none, cursor: none,
    scales: { x: { time: false }, y: { range: () => [low, high] } },
    axes: [none, none],
    series: [{}, { stroke: colour("accent"), width: 1.5, points: none, spanGaps: false }],
  }, [values.map((_, index) => index), values], root);
}
