"use strict";
// The page SQL: sends a statement to the API, shows rows and a chart, hands out files, keeps the statement in the address.

const ask = document.querySelector("[data-sql]");
const statement = document.getElementById("statement");
const state = document.querySelector("[data-state]");
const refused = document.querySelector("[data-refused]");
const result = document.querySelector("[data-result]");
const stop = document.querySelector("[data-stop]");
const measure = document.getElementById("measure");
const form = document.getElementById("form");
const parameters = document.querySelector("[data-parameters]");
const QUERY = "/api/audit/query";
const MAKING_EVERY = 1000, AGE_EVERY = 30_000; // milliseconds after which the page asks again how far the snapshot is
const snapshot = document.querySelector("[data-snapshot]");
const MOST_SHOWN = 1000, MOST_ROWS = 1_000_000, LONG = 300;
const SESSION = /^session_?id$/i; // columns whose values are ids of sessions
const HIDDEN = /(?![\t\n\ufe0f])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cs}\p{Cn}\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0e\uffa0\u2800]|(?<=\p{M}{4})\p{M}/u;
let running = null; // what ends the statement that is being answered
let answer = null;
const chosen = { chart: new URLSearchParams(location.search).get("chart"), as: new URLSearchParams(location.search).get("as") }; // what somebody chose

/** Reads JSON; a whole number that a browser cannot hold exactly stays the text that it was. */
function exact(text) {
  return JSON.parse(text, (_, value, context) => (Number.isInteger(value) && !Number.isSafeInteger(value) && context ? context.source : value));
}

/** A text from anywhere as nodes: what cannot be seen, or turns text around, is shown as its code. */
function visible(text) {
  return text.split(new RegExp(`(${HIDDEN.source})`, "u")).map((part, number) => {
    if (number % 2 === 0) return part;
    const code = document.createElement("span");
    code.className = "code-point";
    code.textContent = `U+${part.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    return code;
  });
}

/** The same where no nodes can stand: in choices and in charts. */
function plain(text) {
  return visible(String(text)).map((part) => part.textContent ?? part).join("");
}

function told(value) {
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** A text that would push everything else away: its beginning, and all of it for whoever opens it. */
function folded(text) {
  const made = document.createElement("details");
  const beginning = document.createElement("summary");
  beginning.append(...visible(`${text.slice(0, LONG / 2)} …`));
  made.append(beginning);
  made.addEventListener("toggle", () => { if (made.childNodes.length === 1) made.append(...visible(text)); });
  return made;
}

/** A session's id as a link to its page, whichever project it is of. */
function sessionLink(id) {
  const made = document.createElement("a");
  made.href = `/sessions/${encodeURIComponent(id)}`;
  made.append(...visible(id));
  return made;
}

/** A cell; of a fraction as many digits as one reads, all of them where one points. */
function cell(value, isNumber, name) {
  const made = document.createElement("td");
  if (value === null) {
    const none = document.createElement("span");
    none.className = "null";
    none.textContent = "NULL";
    made.append(none);
  } else {
    if (SESSION.test(name) && typeof value === "string" && value) {
      made.append(sessionLink(value));
      return made;
    }
    const isLong = typeof value === "number" && String(value).length > 12 && !Number.isInteger(value);
    const text = told(isLong ? Number(value.toPrecision(6)) : value);
    made.append(...(text.length > LONG ? [folded(text)] : visible(text)));
    if (isLong) made.title = value;
  }
  if (isNumber) made.className = "number";
  else if (value !== null && told(value).length > 40) made.className = "words";
  return made;
}

function table(columns, rows) {
  const made = document.createElement("table");
  const caption = made.createCaption();
  caption.className = "visually-hidden";
  caption.textContent = "Result rows";
  const head = made.createTHead().insertRow();
  const numeric = columns.map((one) => NUMERIC.test(one.type));
  columns.forEach((one, number) => {
    const heading = document.createElement("th");
    heading.scope = "col";
    if (numeric[number]) heading.className = "number";
    const kind = document.createElement("small");
    kind.textContent = one.type.length > 40 ? `${one.type.slice(0, 38)} …` : one.type;
    heading.append(...visible(one.name), document.createElement("br"), kind);
    head.append(heading);
  });
  const body = made.createTBody();
  for (const row of rows.slice(0, MOST_SHOWN)) {
    body.insertRow().append(...columns.map((one, number) => cell(row[one.name], numeric[number], one.name)));
  }
  return made;
}

function chart() {
  showChart(document.querySelector("[data-drawn]"), answer, measure.value, form.value);
}

function showAnswer() {
  const { columns, rows, truncated, asOf, elapsedMs } = answer;
  const shownRows = Math.min(rows.length, MOST_SHOWN);
  const count = (number, what) => `${figures(number)} ${what}${number === 1 ? "" : "s"}`;
  const all = rows.length > 1 && !truncated ? "all " : "";
  const more = truncated ? "; there are more" : "";
  const below = shownRows < rows.length ? `, first ${figures(MOST_SHOWN)} shown` : "";
  document.querySelector("[data-summary]").textContent =
    `${truncated ? "the first " : all}${count(rows.length, "row")}${below}${more} · as of ${asOf.slice(0, 19).replace("T", " ")} UTC · ${figures(elapsedMs)} ms`;
  document.querySelector("[data-table]").replaceChildren(table(columns, rows));
  const { across, measures, ordered } = plan(columns, rows);
  const charted = document.querySelector("[data-charted]");
  charted.hidden = !measures.length || new Set(rows.map((row) => String(row[across.name]))).size < 2;
  if (!charted.hidden) {
    measure.replaceChildren(...measures.map((one) => new Option(plain(one.name), one.name)));
    if (measures.some((one) => one.name === chosen.chart)) measure.value = chosen.chart;
    form.value = ["line", "bar"].includes(chosen.as) ? chosen.as : ordered ? "line" : "bar";
    chart();
  }
}

/** Says in the server's words why there is no answer, and selects the line they name. */
function refuse(words) {
  refused.replaceChildren(...visible(words));
  refused.hidden = !words;
  const line = Number(/^LINE (\d+):/m.exec(words)?.[1]);
  if (!line) return;
  const lines = statement.value.split("\n");
  const start = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
  statement.focus();
  statement.setSelectionRange(start, start + (lines[line - 1] || "").length);
}

/** Whether a snapshot is being made, as far as the page has heard. */
const isMaking = () => snapshot.querySelector("[data-making]") !== null;
let asking = 0;

/** Brings an element up to date: where only words have changed, its elements stay, and so does what somebody has selected. */
function renew(before, now) {
  const kinds = (one) => [...one.childNodes].map((node) => node.nodeName).join();
  if (kinds(before) !== kinds(now) || before.dataset.making !== now.dataset.making) {
    before.replaceWith(now);
    return;
  }
  [...before.childNodes].forEach((node, place) => {
    const after = now.childNodes[place];
    if (node.textContent !== after.textContent) node.textContent = after.textContent;
    if (after.dateTime) node.dateTime = after.dateTime;
  });
}

/** Asks how old the snapshot is, and whether a new one is being made, and goes on asking: often while one is. */
async function followSnapshot() {
  clearTimeout(asking);
  const response = document.hidden ? null : await fetch(snapshot.dataset.snapshot, { credentials: "same-origin" }).catch(() => null);
  if (response?.ok && !response.redirected) {
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const now = page.getElementById("snapshot");
    if (now) renew(snapshot.firstElementChild, now);
  }
  clearTimeout(asking);
  asking = setTimeout(followSnapshot, isMaking() || running ? MAKING_EVERY : AGE_EVERY);
}

const pause = (time) => new Promise((resolve) => { setTimeout(resolve, time); });

/** Sends the statement until it is answered or refused: while the first snapshot is being made, the server refuses to wait for long. */
async function patiently(body, signal) {
  for (;;) {
    const response = await sent(body, signal);
    if (response.status !== 503) return response;
    await followSnapshot();
    if (!isMaking() || signal.aborted) return response;
    state.textContent = "Waiting for the snapshot …";
    await pause(MAKING_EVERY);
    signal.throwIfAborted();
  }
}

/** Sends the statement with its values as texts, which are as good as numbers beside a column; where it takes none, with plain numbers as such. */
async function sent(body, signal) {
  const response = await send("POST", QUERY, body, {}, signal);
  const numbers = response.status === 400 && withNumbers(body.parameters);
  if (!numbers) return response;
  const again = await send("POST", QUERY, { ...body, parameters: numbers }, {}, signal);
  return again.ok ? again : response;
}

/** Sends the statement; answers what `read` makes of the response, or nothing where it was refused, stopped or not heard of. */
async function question(body, read) {
  running?.abort();
  const mine = new AbortController();
  running = mine;
  refuse("");
  stop.hidden = false;
  state.textContent = "Running …";
  const waiting = setTimeout(() => {
    followSnapshot();
    state.textContent = isMaking() ? "Waiting for the snapshot …" : "Still running …";
  }, 1500);
  try {
    const response = await patiently(body, mine.signal);
    if (response.status === 401) location.assign(`/sign-in?next=${encodeURIComponent(location.pathname + location.search)}`);
    if (response.ok) return await read(response);
    const wait = response.headers.get("Retry-After");
    refuse(`${await problemOf(response)}${wait ? `\nTry again in ${wait} s.` : ""}`);
  } catch (error) {
    if (error.name !== "AbortError") refuse("Server unreachable, or the response was cut off.");
  } finally {
    clearTimeout(waiting);
    if (running === mine) {
      running = null;
      stop.hidden = true;
      state.textContent = mine.signal.aborted ? "Stopped." : "";
      followSnapshot();
    }
  }
  return null;
}

function remember() {
  const query = new URLSearchParams({ q: statement.value });
  for (const [name, value] of Object.entries(parametersOf(statement.value))) if (value !== null) query.set(PREFIX + name, value);
  if (ask.elements.rows.value !== "1000") query.set("rows", ask.elements.rows.value);
  for (const [name, value] of Object.entries(chosen)) if (value) query.set(name, value);
  history.replaceState(null, "", `${location.pathname}?${query}`);
}

/** The statement and the values of its parameters. */
function asked() {
  return { sql: statement.value, parameters: parametersOf(statement.value) };
}

async function run() {
  if (!statement.value.trim()) return;
  remember();
  const body = { ...asked(), format: "json", limit: Number(ask.elements.rows.value) };
  const text = await question(body, (response) => response.text());
  result.hidden = text === null;
  if (text === null) return;
  answer = exact(text);
  showAnswer();
}

async function download(format) {
  const body = { ...asked(), format, limit: MOST_ROWS };
  const file = await question(body, async (response) => ({ blob: await response.blob(), headers: response.headers }));
  if (!file) return;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(file.blob);
  link.download = `driftline.${format}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  const cut = file.headers.get("X-Driftline-Truncated") === "true" ? "; more rows exist than fit in one file" : "";
  state.textContent = `${file.headers.get("X-Driftline-Rows")} rows as ${format}${cut}.`;
}

/** After the statement changed: the numbers of its lines, and the fields of its parameters. */
function follow() {
  const lines = document.querySelector("[data-lines]");
  // The lines stand behind the field, unseen and as long as there, so that each number is beside its line however it wraps.
  lines.replaceChildren(...statement.value.split("\n").map((text) => {
    const line = document.createElement("span");
    line.textContent = text;
    return line;
  }));
  lines.scrollTop = statement.scrollTop;
  showParameters(parameters, statement.value);
}

/** Puts text where the cursor is, so that it can be undone. */
function insert(text) {
  statement.focus();
  if (!document.execCommand("insertText", false, text)) statement.setRangeText(text, statement.selectionStart, statement.selectionEnd, "end");
  follow();
}

ask.addEventListener("submit", (event) => { event.preventDefault(); run(); });
stop.addEventListener("click", () => running?.abort());
statement.addEventListener("input", follow);
statement.addEventListener("scroll", () => { document.querySelector("[data-lines]").scrollTop = statement.scrollTop; });
ask.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  run();
});
for (const [name, choice] of [["chart", measure], ["as", form]]) {
  choice.addEventListener("change", () => {
    chosen[name] = choice.value;
    remember();
    chart();
  });
}
document.addEventListener("click", (event) => {
  const column = event.target.closest("[data-insert]");
  const wanted = event.target.closest("[data-download]");
  const used = event.target.closest("[data-use]");
  if (column) insert(column.dataset.insert);
  else if (wanted) download(wanted.dataset.download);
  else if (used && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    statement.focus();
    statement.select();
    takeParameters(new URL(used.href).searchParams);
    chosen.chart = chosen.as = null;
    parameters.querySelector("[data-fields]").replaceChildren();
    insert(used.closest("details").querySelector("pre").textContent);
    statement.setSelectionRange(0, 0);
    remember();
    scrollTo(0, 0);
  }
});
follow();
document.addEventListener("visibilitychange", () => { if (!document.hidden) followSnapshot(); });
followSnapshot();
