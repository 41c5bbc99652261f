"use strict";
// One chart on a canvas, drawn by uPlot: lines or bars over places 0, 1, 2 …, their backgrounds and marks, and what points at a place.

const DOTTED = 45; // Up to so many points each has a dot; beyond, only those without a neighbour.
const MARKS = { deployment: "accent", policy: "part-2", judge: "part-4" };
const FORMS = {
  number: (value) => value.toLocaleString("en", { maximumFractionDigits: 4 }).replaceAll(",", "\u202f"),
  large: (value) => value.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 4 }),
  usd: (value) => `$${value.toLocaleString("en", { maximumFractionDigits: 6 })}`,
  share: (value) => `${(100 * value).toLocaleString("en", { maximumFractionDigits: 2 })}%`,
};

const colours = new Map(); // of the present scheme; emptied when it changes

/** A colour of the page's style as a canvas takes it. */
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

/** A number as an axis writes it. */
function ticked(form, value) {
  return (form === "number" && Math.abs(value) >= 1e5 ? FORMS.large : FORMS[form])(value);
}

/** Times as an axis writes them, in UTC: days, or hours where there are several within a day. */
function clocked(splits) {
  const isWhole = splits.every((one) => one % 86400 === 0);
  return splits.map((one) => {
    const [day, clock] = new Date(one * 1000).toISOString().split("T");
    return isWhole ? day : `${day.slice(5)} ${clock.slice(0, 5)}`;
  });
}

/** What the values reach from and to, within the limits of the measure; bars stand on 0. */
function reach(spec, columns) {
  const [least, most] = spec.limits || [null, null];
  const values = [...columns.flat(), ...(spec.before || []), ...(spec.reaches || []), ...(spec.band || []).flatMap((one) => one.slice(2))]
    .filter((one) => one !== null && one !== undefined)
    .map((one) => Math.min(Math.max(one, least ?? -Infinity), most ?? Infinity));
  const isOnNothing = spec.kind !== "line";
  if (isOnNothing) values.push(0);
  const end = (limit, hard) => ({ pad: 0.08, hard: limit ?? hard, soft: isOnNothing ? 0 : null, mode: isOnNothing ? 1 : 0 });
  return uPlot.rangeNum(Math.min(...values), Math.max(...values), { min: end(least, -Infinity), max: end(most, Infinity) });
}

/** Sums of the parts of bars, so that each part stands on those before it. */
function stacked(series) {
  const sums = [];
  for (const part of series) sums.push(part.map((value, place) => (value ?? 0) + (sums.at(-1)?.[place] ?? 0)));
  return sums;
}

/** The places of a list where `keep` holds; null elsewhere. */
function only(values, keep) {
  return values.map((value, place) => (keep(place) ? value : null));
}

/** Bars of one part of several that stand beside each other; those below 0 hang from it. */
function beside(part, parts) {
  return (u, series, first, last) => {
    const fill = new Path2D();
    const slot = u.valToPos(1, "x", true) - u.valToPos(0, "x", true);
    const [width, ground] = [(slot * 0.72) / parts, u.valToPos(0, "y", true)];
    for (let place = first; place <= last; place += 1) {
      const value = u.data[series][place];
      if (value === null || value === undefined) continue;
      const top = u.valToPos(value, "y", true);
      fill.rect(u.valToPos(u.data[0][place], "x", true) - slot * 0.36 + part * width, Math.min(top, ground), width, Math.max(1, Math.abs(top - ground)));
    }
    return { stroke: null, fill, clip: null, flags: 0 };
  };
}

/** The columns of numbers and how each is drawn, what is behind first. */
function layers(spec, count) {
  const dots = (show) => ({ show, size: 5.5, fill: colour("accent"), stroke: colour("accent") });
  const found = [];
  if (spec.kind === "bars") {
    const paths = uPlot.paths.bars({ size: [0.72, 64] });
    const marked = new Set(spec.marked || []);
    const sums = stacked(spec.series);
    sums.map((values, part) => [values, part]).reverse().forEach(([values, part]) => {
      found.push([only(values, (place) => !marked.has(place)), { fill: colour(`part-${part}`), width: 0, paths, points: { show: false } }]);
    });
    if (marked.size) found.push([only(sums.at(-1), (place) => marked.has(place)), { fill: colour("bad"), width: 0, paths, points: { show: false } }]);
  }
  if (spec.kind === "groups") {
    spec.series.forEach((values, part) => {
      found.push([values, { fill: colour(`part-${part}`), width: 0, paths: beside(part, spec.series.length), points: { show: false } }]);
    });
  }
  if (spec.previous) found.push([spec.previous, { stroke: colour("soft"), width: 1.5, dash: [2, 3], alpha: 0.85, points: { show: false } }]);
  if (spec.kind === "line") {
    spec.series.forEach((values, part) => {
      const stroke = colour(spec.series.length > 1 ? `part-${part}` : "accent");
      found.push([values, { stroke, width: 2, spanGaps: Boolean(spec.spans), points: { ...dots(count <= DOTTED ? true : undefined), fill: stroke, stroke } }]);
    });
  }
  return found;
}

/** Draws with the pen of the canvas as it was before. */
function inked(u, draw) {
  u.ctx.save();
  u.ctx.beginPath();
  u.ctx.rect(u.bbox.left, u.bbox.top - 8 * uPlot.pxRatio, u.bbox.width, u.bbox.height + 8 * uPlot.pxRatio);
  u.ctx.clip();
  draw(u.ctx, (place) => u.valToPos(place, "x", true), (value) => u.valToPos(value, "y", true), uPlot.pxRatio);
  u.ctx.restore();
}

function level(context, from, to, height, dash) {
  context.setLineDash(dash);
  context.beginPath();
  context.moveTo(from, height);
  context.lineTo(to, height);
  context.stroke();
}

/** The normal range, and the background of points that stand out. */
function drawBehind(spec, u) {
  inked(u, (context, x, y, ratio) => {
    for (const [first, last, low, mean, high] of spec.band || []) {
      const [left, right] = [x(first - 0.5), x(last + 0.5)];
      context.fillStyle = context.strokeStyle = colour("accent");
      context.globalAlpha = 0.14;
      const top = Math.max(y(high), u.bbox.top);
      context.fillRect(left, top, right - left, Math.max(y(low) - top, ratio));
      context.globalAlpha = 0.7;
      context.lineWidth = ratio;
      level(context, left, right, y(mean), [4 * ratio, 4 * ratio]);
    }
    context.globalAlpha = 0.13;
    context.fillStyle = colour("bad");
    if (spec.kind === "line") for (const place of spec.marked || []) context.fillRect(x(place - 0.5), u.bbox.top, x(place + 0.5) - x(place - 0.5), u.bbox.height);
    context.globalAlpha = 1;
    context.strokeStyle = colour("bad");
    context.lineWidth = 1.5 * ratio;
    (spec.before || []).forEach((value, place) => {
      if (value !== null) level(context, x(place - 0.5), x(place + 0.5), y(value), [2 * ratio, 4 * ratio]);
    });
  });
}

const SIGNS = {
  deployment: (context, x, y, size) => { context.moveTo(x - size, y - size); context.lineTo(x + size, y - size); context.lineTo(x, y + size); },
  policy: (context, x, y, size) => context.rect(x - size, y - size, 2 * size, 2 * size),
  judge: (context, x, y, size) => context.arc(x, y, size, 0, 2 * Math.PI),
};

/** Points that stand out as diamonds, and the marks as lines with a sign of their kind on top. */
function drawBefore(spec, u) {
  inked(u, (context, x, y, ratio) => {
    context.fillStyle = colour("bad");
    if (spec.kind === "line") {
      for (const place of spec.marked || []) {
        const value = spec.series[0][place];
        if (value === null) continue;
        const [across, down, size] = [x(place), y(value), 5 * ratio];
        context.beginPath();
        for (const [dx, dy] of [[0, -size], [size, 0], [0, size], [-size, 0]]) context.lineTo(across + dx, down + dy);
        context.fill();
      }
    }
    for (const [place, kind] of spec.marks || []) {
      context.strokeStyle = context.fillStyle = colour(MARKS[kind]);
      context.lineWidth = 1.5 * ratio;
      context.setLineDash([5 * ratio, 3 * ratio]);
      context.beginPath();
      context.moveTo(x(place), u.bbox.top);
      context.lineTo(x(place), u.bbox.top + u.bbox.height);
      context.stroke();
      context.setLineDash([]);
      context.beginPath();
      SIGNS[kind](context, x(place), u.bbox.top - 2 * ratio, 3.5 * ratio);
      context.fill();
    }
  });
}

/** The axis of places: as many labels as there is room for, counted from the last one, or the numbers of a measure. */
function across(spec, count) {
  const style = { stroke: colour("soft"), font: "11px system-ui, sans-serif", ticks: { show: false }, grid: { show: false }, size: 24, gap: 4 };
  if (!spec.labels) return { ...style, space: 96, ...(spec.isTime ? { values: (_, splits) => clocked(splits) } : { values: (_, splits) => splits.map((one) => ticked("number", one)) }) };
  const longest = Math.max(...spec.labels.map((one) => one.length));
  return {
    ...style,
    splits: (u) => {
      const every = Math.max(1, Math.ceil(count / Math.max(1, u.width / (Math.min(longest, 16) * 6.4 + 12))));
      return Array.from({ length: count }, (_, place) => place).filter((place) => (count - 1 - place) % every === 0);
    },
    values: (_, splits) => splits.map((place) => (spec.labels[place].length > 16 ? `${spec.labels[place].slice(0, 15)}…` : spec.labels[place])),
  };
}

/** Draws a chart into an element; `pointed` is called with the place that the crosshair is at, or null. */
function plot(root, spec, pointed) {
  const places = spec.places || spec.labels.map((_, place) => place);
  const found = layers(spec, places.length);
  const [low, high] = reach(spec, found.map(([values]) => values));
  const ends = spec.ends || [-0.5, places.length - 0.5];
  const font = "11px system-ui, sans-serif";
  const options = {
    width: root.clientWidth,
    height: root.clientHeight,
    padding: [10, 18, 0, 0],
    legend: { show: false },
    scales: { x: { time: Boolean(spec.isTime), range: () => ends }, y: { range: () => [low, high] } },
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    axes: [
      across(spec, places.length),
      {
        stroke: colour("soft"), font, space: 32, gap: 4, ticks: { show: false }, grid: { stroke: colour("line"), width: 1 },
        ...(spec.digits === 0 ? { incrs: [1, 2, 5, ...[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12].flatMap((power) => [1, 2, 5].map((step) => step * 10 ** power))] } : {}),
        values: (_, splits) => splits.map((value) => ticked(spec.form || "number", value)),
        size: (_, values) => 12 + 6.6 * Math.max(1, ...(values || []).map((one) => one.length)),
      },
    ],
    series: [{}, ...found.map(([, look]) => look)],
    cursor: {
      y: false,
      drag: { x: false, y: false, setScale: false },
      points: { show: spec.kind === "line", size: 8 },
      bind: { dblclick: () => null },
      ...(spec.group ? { sync: { key: spec.group, scales: ["x", null], setSeries: false } } : {}),
    },
    hooks: {
      drawAxes: [(u) => drawBehind(spec, u)],
      draw: [(u) => drawBefore(spec, u)],
      setCursor: [(u) => pointed(u, u.cursor.left < 0 ? null : u.cursor.idx ?? null)],
    },
  };
  return new uPlot(options, [places, ...found.map(([values]) => values)], root);
}

/** Draws a small line without axes. */
function plotSpark(root, values) {
  const known = values.filter((one) => one !== null);
  const [low, high] = uPlot.rangeNum(Math.min(...known), Math.max(...known), 0.1, true);
  const none = { show: false };
  return new uPlot({
    width: root.clientWidth, height: root.clientHeight, padding: [2, 2, 2, 2], legend: none, cursor: none,
    scales: { x: { time: false }, y: { range: () => [low, high] } },
    axes: [none, none],
    series: [{}, { stroke: colour("accent"), width: 1.5, points: none, spanGaps: false }],
  }, [values.map((_, place) => place), values], root);
}
