"use strict";
// The SQL page: sends a statement to the API, shows rows and a chart, downloads files, and keeps the statement in the address.

const editor = document.querySelector("[data-sql]");
const statement = document.getElementById("statement");
const state = document.querySelector("[data-state]");
const problem = document.querySelector("[data-refused]");
const result = document.querySelector("[data-result]");
const stop = document.querySelector("[data-stop]");
const measure = document.getElementById("measure");
const form = document.getElementById("form");
const parameters = document.querySelector("[data-parameters]");
const QUERY = "/api/audit/query";
const BUILD_POLL_MS = 1000; // while a snapshot is being built
const AGE_POLL_MS = 30_000;
const snapshot = document.querySelector("[data-snapshot]");
const MAX_SHOWN_ROWS = 1000;
const MAX_DOWNLOAD_ROWS = 1_000_000;
const MAX_UNFOLDED_LENGTH = 300;
const SESSION = /^session_?id$/i; // names of columns with session ids
const HIDDEN = /(?![\t\n\ufe0f])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cs}\p{Cn}\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0e\uffa0\u2800]|(?<=\p{M}{4})\p{M}/u;
let running = null; // the AbortController of the running statement
let answer = null;
const chosen = { chart: new URLSearchParams(location.search).get("chart"), as: new URLSearchParams(location.search).get("as") }; // the chart options that the viewer chose

/** Parses JSON. Integers that JavaScript cannot represent exactly stay texts. */
function parseExact(text) {
  return JSON.parse(text, (_, value, context) => (Number.isInteger(value) && !Number.isSafeInteger(value) && context ? context.source : value));
}

/** Returns a foreign text as nodes. Invisible and direction characters are shown as their codes. */
function visible(text) {
  return text.split(new RegExp(`(${HIDDEN.source})`, "u")).map((part, number) => {
    if (number % 2 === 0) return part;
    const code = document.createElement("span");
    code.className = "code-point";
    code.textContent = `U+${part.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    return code;
  });
}

/** Returns a foreign text as plain text, for options and charts. */
function plain(text) {
  return visible(String(text)).map((part) => part.textContent ?? part).join("");
}

function formatValue(value) {
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** Returns a long text as its beginning, which unfolds to all of it. */
function foldText(text) {
  const details = document.createElement("details");
  const beginning = document.createElement("summary");
  beginning.append(...visible(`${text.slice(0, MAX_UNFOLDED_LENGTH / 2)} …`));
  details.append(beginning);
  details.addEventListener("toggle", () => { if (details.childNodes.length === 1) details.append(...visible(text)); });
  return details;
}

/** Returns a link to the session with an id, in any project. */
function linkSession(id) {
  const link = document.createElement("a");
  link.href = `/sessions/${encodeURIComponent(id)}`;
  link.append(...visible(id));
  return link;
}

/** Builds a cell. A long fraction is rounded, with all digits in its tooltip. */
function buildCell(value, isNumber, name) {
  const cell = document.createElement("td");
  if (value === null) {
    const none = document.createElement("span");
    none.className = "null";
    none.textContent = "NULL";
    cell.append(none);
  } else {
    if (SESSION.test(name) && typeof value === "string" && value) {
      cell.append(linkSession(value));
      return cell;
    }
    const isLong = typeof value === "number" && String(value).length > 12 && !Number.isInteger(value);
    const text = formatValue(isLong ? Number(value.toPrecision(6)) : value);
    cell.append(...(text.length > MAX_UNFOLDED_LENGTH ? [foldText(text)] : visible(text)));
    if (isLong) cell.title = value;
  }
  if (isNumber) cell.className = "number";
  else if (value !== null && formatValue(value).length > 40) cell.className = "words";
  return cell;
}

function buildTable(columns, rows) {
  const table = document.createElement("table");
  const caption = table.createCaption();
  caption.className = "visually-hidden";
  caption.textContent = "Result rows";
  const head = table.createTHead().insertRow();
  const numeric = columns.map((column) => NUMERIC.test(column.type));
  columns.forEach((column, number) => {
    const heading = document.createElement("th");
    heading.scope = "col";
    if (numeric[number]) heading.className = "number";
    const kind = document.createElement("small");
    kind.textContent = column.type.length > 40 ? `${column.type.slice(0, 38)} …` : column.type;
    heading.append(...visible(column.name), document.createElement("br"), kind);
    head.append(heading);
  });
  const body = table.createTBody();
  for (const row of rows.slice(0, MAX_SHOWN_ROWS)) {
    body.insertRow().append(...columns.map((column, number) => buildCell(row[column.name], numeric[number], column.name)));
  }
  return table;
}

function updateChart() {
  showChart(document.querySelector("[data-drawn]"), answer, measure.value, form.value);
}

function showAnswer() {
  const { columns, rows, truncated, asOf, elapsedMs } = answer;
  const shownRows = Math.min(rows.length, MAX_SHOWN_ROWS);
  const count = (number, what) => `${formatNumber(number)} ${what}${number === 1 ? "" : "s"}`;
  const all = rows.length > 1 && !truncated ? "all " : "";
  const more = truncated ? "; there are more" : "";
  const below = shownRows < rows.length ? `, first ${formatNumber(MAX_SHOWN_ROWS)} shown` : "";
  document.querySelector("[data-summary]").textContent =
    `${truncated ? "the first " : all}${count(rows.length, "row")}${below}${more} · as of ${asOf.slice(0, 19).replace("T", " ")} UTC · ${formatNumber(elapsedMs)} ms`;
  document.querySelector("[data-table]").replaceChildren(buildTable(columns, rows));
  const { xColumn, measures, isOrdered } = planChart(columns, rows);
  const chartSection = document.querySelector("[data-charted]");
  chartSection.hidden = !measures.length || new Set(rows.map((row) => String(row[xColumn.name]))).size < 2;
  if (!chartSection.hidden) {
    measure.replaceChildren(...measures.map((column) => new Option(plain(column.name), column.name)));
    if (measures.some((column) => column.name === chosen.chart)) measure.value = chosen.chart;
    form.value = ["line", "bar"].includes(chosen.as) ? chosen.as : isOrdered ? "line" : "bar";
    updateChart();
  }
}

/** Shows an error message, and selects the line of the statement that it names. */
function showProblem(message) {
  problem.replaceChildren(...visible(message));
  problem.hidden = !message;
  const line = Number(/^LINE (\d+):/m.exec(message)?.[1]);
  if (!line) return;
  const lines = statement.value.split("\n");
  const start = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
  statement.focus();
  statement.setSelectionRange(start, start + (lines[line - 1] || "").length);
}

/** Returns whether a snapshot was being built at the last poll. */
const isBuilding = () => snapshot.querySelector("[data-making]") !== null;
let pollTimer = 0;

/** Updates an element. If only texts have changed, its nodes stay, so that a selection is not lost. */
function updateElement(before, now) {
  const kinds = (element) => [...element.childNodes].map((node) => node.nodeName).join();
  if (kinds(before) !== kinds(now) || before.dataset.making !== now.dataset.making) {
    before.replaceWith(now);
    return;
  }
  [...before.childNodes].forEach((node, index) => {
    const after = now.childNodes[index];
    if (node.textContent !== after.textContent) node.textContent = after.textContent;
    if (after.dateTime) node.dateTime = after.dateTime;
  });
}

/** Polls the state of the snapshot, more often while one is being built. */
async function pollSnapshot() {
  clearTimeout(pollTimer);
  const response = document.hidden ? null : await fetch(snapshot.dataset.snapshot, { credentials: "same-origin" }).catch(() => null);
  if (response?.ok && !response.redirected) {
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const now = page.getElementById("snapshot");
    if (now) updateElement(snapshot.firstElementChild, now);
  }
  clearTimeout(pollTimer);
  pollTimer = setTimeout(pollSnapshot, isBuilding() || running ? BUILD_POLL_MS : AGE_POLL_MS);
}

const pause = (time) => new Promise((resolve) => { setTimeout(resolve, time); });

/** Sends the statement, and again while the first snapshot is being built. The server waits only briefly and then answers 503. */
async function sendWithRetries(body, signal) {
  for (;;) {
    const response = await sendStatement(body, signal);
    if (response.status !== 503) return response;
    await pollSnapshot();
    if (!isBuilding() || signal.aborted) return response;
    state.textContent = "Waiting for the snapshot …";
    await pause(BUILD_POLL_MS);
    signal.throwIfAborted();
  }
}

/** Sends the statement with its parameters as texts, which DuckDB converts beside a column. If it fails, sends plain numbers as numbers. */
async function sendStatement(body, signal) {
  const response = await send("POST", QUERY, body, {}, signal);
  const numbers = response.status === 400 && withNumbers(body.parameters);
  if (!numbers) return response;
  const retry = await send("POST", QUERY, { ...body, parameters: numbers }, {}, signal);
  return retry.ok ? retry : response;
}

/** Runs the statement and returns what `read` makes of the response; null if it failed or was stopped. */
async function runStatement(body, read) {
  running?.abort();
  const controller = new AbortController();
  running = controller;
  showProblem("");
  stop.hidden = false;
  state.textContent = "Running …";
  const waiting = setTimeout(() => {
    pollSnapshot();
    state.textContent = isBuilding() ? "Waiting for the snapshot …" : "Still running …";
  }, 1500);
  try {
    const response = await sendWithRetries(body, controller.signal);
    if (response.status === 401) location.assign(`/sign-in?next=${encodeURIComponent(location.pathname + location.search)}`);
    if (response.ok) return await read(response);
    const wait = response.headers.get("Retry-After");
    showProblem(`${await readProblem(response)}${wait ? `\nTry again in ${wait} s.` : ""}`);
  } catch (error) {
    if (error.name !== "AbortError") showProblem("Server unreachable, or the response was cut off.");
  } finally {
    clearTimeout(waiting);
    if (running === controller) {
      running = null;
      stop.hidden = true;
      state.textContent = controller.signal.aborted ? "Stopped." : "";
      pollSnapshot();
    }
  }
  return null;
}

/** Keeps the statement, its parameters and the options in the address. */
function updateAddress() {
  const query = new URLSearchParams({ q: statement.value });
  for (const [name, value] of Object.entries(readParameters(statement.value))) if (value !== null) query.set(PREFIX + name, value);
  if (editor.elements.rows.value !== "1000") query.set("rows", editor.elements.rows.value);
  for (const [name, value] of Object.entries(chosen)) if (value) query.set(name, value);
  history.replaceState(null, "", `${location.pathname}?${query}`);
}

/** Returns the statement and its parameters. */
function buildQuery() {
  return { sql: statement.value, parameters: readParameters(statement.value) };
}

async function run() {
  if (!statement.value.trim()) return;
  updateAddress();
  const body = { ...buildQuery(), format: "json", limit: Number(editor.elements.rows.value) };
  const text = await runStatement(body, (response) => response.text());
  result.hidden = text === null;
  if (text === null) return;
  answer = parseExact(text);
  showAnswer();
}

async function download(format) {
  const body = { ...buildQuery(), format, limit: MAX_DOWNLOAD_ROWS };
  const file = await runStatement(body, async (response) => ({ blob: await response.blob(), headers: response.headers }));
  if (!file) return;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(file.blob);
  link.download = `driftline.${format}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  const cut = file.headers.get("X-Driftline-Truncated") === "true" ? "; more rows exist than fit in one file" : "";
  state.textContent = `${file.headers.get("X-Driftline-Rows")} rows as ${format}${cut}.`;
}

/** Updates the line numbers and the fields of the parameters. */
function updateEditor() {
  const lines = document.querySelector("[data-lines]");
  // Invisible copies of the lines wrap as in the field, so that each number is beside its line.
  lines.replaceChildren(...statement.value.split("\n").map((text) => {
    const line = document.createElement("span");
    line.textContent = text;
    return line;
  }));
  lines.scrollTop = statement.scrollTop;
  showParameters(parameters, statement.value);
}

/** Inserts a text at the cursor in a way that can be undone. */
function insert(text) {
  statement.focus();
  if (!document.execCommand("insertText", false, text)) statement.setRangeText(text, statement.selectionStart, statement.selectionEnd, "end");
  updateEditor();
}

editor.addEventListener("submit", (event) => { event.preventDefault(); run(); });
stop.addEventListener("click", () => running?.abort());
statement.addEventListener("input", updateEditor);
statement.addEventListener("scroll", () => { document.querySelector("[data-lines]").scrollTop = statement.scrollTop; });
editor.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  run();
});
for (const [name, choice] of [["chart", measure], ["as", form]]) {
  choice.addEventListener("change", () => {
    chosen[name] = choice.value;
    updateAddress();
    updateChart();
  });
}
document.addEventListener("click", (event) => {
  const column = event.target.closest("[data-insert]");
  const format = event.target.closest("[data-download]");
  const example = event.target.closest("[data-use]");
  if (column) insert(column.dataset.insert);
  else if (format) download(format.dataset.download);
  else if (example && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    statement.focus();
    statement.select();
    takeParameters(new URL(example.href).searchParams);
    chosen.chart = chosen.as = null;
    parameters.querySelector("[data-fields]").replaceChildren();
    insert(example.closest(".example").querySelector("pre").textContent);
    statement.setSelectionRange(0, 0);
    updateAddress();
    scrollTo(0, 0);
  }
});
updateEditor();
document.addEventListener("visibilitychange", () => { if (!document.hidden) pollSnapshot(); });
pollSnapshot();
