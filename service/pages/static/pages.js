"use strict";
// What every page does: keeps itself fresh without a reload, sends what people decide, and signs in and out.

const meta = document.querySelector('meta[name="driftline-page"]');

/** Sends JSON as this page; answers the response. */
async function send(method, address, body, headers = {}, signal = undefined) {
  const mark = meta ? { [meta.dataset.header]: meta.content } : {};
  return fetch(address, {
    method,
    headers: { "Content-Type": "application/json", ...mark, ...headers },
    body: body === undefined ? undefined : JSON.stringify(body),
    credentials: "same-origin",
    redirect: "error",
    signal,
  });
}

/** An error as a sentence: programs get it in lower case, or with the name of a field first. `sentence` in rendering.py does the same. */
function sentenceOf(error) {
  const text = /^[^\s:]+:\s/.test(error) ? `Not valid: ${error}` : error.slice(0, 1).toUpperCase() + error.slice(1);
  return /\n|[.!?…]$/.test(text) ? text : `${text}.`;
}

/** What went wrong, in the server's words where it has any. */
async function problemOf(response) {
  try {
    return sentenceOf((await response.json()).error);
  } catch {
    return `The server answered ${response.status}.`;
  }
}

function show(element, words) {
  element.textContent = words;
  element.hidden = !words;
}

// Says what was done, wherever on the page one is: whatever it was about may have been exchanged by then.
const news = document.createElement("p");
news.className = "news";
news.setAttribute("role", "status");
document.body.append(news);
let silence = 0;

/** A number as pages write it, with a thin space between thousands. */
function figures(number) {
  return number.toLocaleString("en").replaceAll(",", "\u202f");
}

/** Says it for a while; `{name}` in the words is a field of what the server answered, of a list how many it has. */
function say(words, answer = {}) {
  const told = (_, name) => figures(Array.isArray(answer[name]) ? answer[name].length : answer[name] ?? 0);
  news.textContent = words.replace(/\{(\w+)\}/g, told);
  clearTimeout(silence);
  silence = setTimeout(() => { news.textContent = ""; }, 10_000);
}

/** After something was done: elsewhere, or here with what is new, and said. */
async function done(element, response, form) {
  const words = element?.dataset.done || form?.dataset.done;
  const answer = words && response.status !== 204 ? await response.json() : {};
  const then = element?.dataset.then || form?.dataset.then;
  if (then) { location.assign(then); return; }
  await refresh(true);
  if (words) say(words, answer);
}

/** Does something while a button is out of use; says beside it what went wrong. */
async function attempt(button, problem, action) {
  button.disabled = true;
  show(problem, "");
  try {
    const words = await action();
    if (words) show(problem, words);
  } catch {
    show(problem, "Server unreachable. Nothing was changed; try again.");
  } finally {
    button.disabled = false;
  }
}

function problemBeside(element) {
  const place = element.closest("form, section, .panel, .card") || element.parentElement;
  let problem = place.querySelector("[data-problem]");
  if (!problem) {
    problem = document.createElement("p");
    problem.className = "problem";
    problem.setAttribute("role", "alert");
    problem.dataset.problem = "";
    place.append(problem);
  }
  return problem;
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.matches("[data-sign-in]")) {
    event.preventDefault();
    const token = form.elements.token.value.trim();
    attempt(form.querySelector("button"), problemBeside(form), async () => {
      const response = await send("POST", "/api/audit/sign-in", {}, { Authorization: `Bearer ${token}` });
      if (!response.ok) return problemOf(response);
      location.assign(form.dataset.then || "/");
    });
  } else if (form.matches("[data-send]")) {
    // A form whose fields are sent as one JSON object; empty fields are left out, those marked data-number are numbers.
    event.preventDefault();
    const body = {};
    for (const field of form.elements) {
      // A button counts if it is the one that was pressed.
      if (!field.name || field.value === "" || field.type === "submit" || (field.type === "radio" && !field.checked)) continue;
      body[field.name] = "number" in field.dataset ? Number(field.value) : field.value;
    }
    if (event.submitter?.name) body[event.submitter.name] = event.submitter.value;
    attempt(event.submitter || form.querySelector("button"), problemBeside(form), async () => {
      const response = await send(form.dataset.send, form.getAttribute("action"), body);
      if (!response.ok) return problemOf(response);
      form.reset();
      await done(event.submitter, response, form);
    });
  }
});

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-post], button[data-copy]");
  if (!button) return;
  if (button.dataset.post) {
    attempt(button, problemBeside(button), async () => {
      const response = await send("POST", button.dataset.post, {});
      if (!response.ok && response.status !== 401) return problemOf(response);
      await done(button, response);
    });
  } else {
    copy(document.querySelector(button.dataset.copy)).then((copied) => {
      button.dataset.words ||= button.textContent;
      button.setAttribute("aria-live", "polite");
      button.textContent = copied ? "Copied" : "Press Ctrl+C";
      setTimeout(() => { button.textContent = button.dataset.words; }, 2500);
    });
  }
});

/** Copies the text of an element; where a browser does not allow that (without HTTPS, say), it selects it and answers false. */
async function copy(element) {
  try {
    await navigator.clipboard.writeText(element.textContent.trim());
    return true;
  } catch {
    getSelection().selectAllChildren(element);
    return document.execCommand("copy");
  }
}

/** Brings the chosen link of each row of links into view where the row is wider than a phone. */
function bringIntoView(within) {
  for (const nav of within.querySelectorAll("nav")) {
    const chosen = nav.scrollWidth > nav.clientWidth && nav.querySelector("[aria-current]");
    if (chosen) nav.scrollLeft += chosen.getBoundingClientRect().left - nav.getBoundingClientRect().left - 12;
  }
}
bringIntoView(document);
document.addEventListener("driftline:part", (event) => bringIntoView(event.detail));

// Live pages: parts with an id inside main[data-live] are replaced where the server says something new, and nothing else moves.
const main = document.querySelector("main[data-live]");
const fresh = document.querySelector("[data-fresh]");
let tag = null;

/** Whether somebody is writing in a part, or has written or selected there what is not sent yet. */
function busy(part) {
  if (part.contains(document.activeElement) && document.activeElement.matches("input, textarea, select")) return true;
  return [...part.querySelectorAll("textarea")].some((one) => one.value !== one.defaultValue)
    || [...part.querySelectorAll('input[type="checkbox"]')].some((one) => one.checked !== one.defaultChecked);
}

function keepOpen(before, after) {
  for (const details of before.querySelectorAll("details[id]")) {
    const twin = after.querySelector(`#${CSS.escape(details.id)}`);
    if (twin) twin.open = details.open;
  }
}

/** Finds in a part what stands there for an element of it now or later: the same kind with the same id, address or name; else the part. */
function finder(part, element) {
  const names = ["id", "href", "name", "value", "data-post", "data-copy"];
  const alike = () => [...part.querySelectorAll(element.localName)].filter((one) =>
    names.every((name) => one.getAttribute(name) === element.getAttribute(name)));
  const place = alike().indexOf(element);
  return () => alike()[place] || alike()[0] || part;
}

let questions = 0;
let answered = 0;

/** The address without the place on the page. */
const here = () => location.pathname + location.search;

/** Looks for what is new at the address of the page; `isNews`: whether it is shown as such, and not as what somebody has asked for. */
async function refresh(always = false, isNews = true) {
  if (!main || (document.hidden && !always)) return;
  const address = here();
  const mine = ++questions;
  let response;
  let text;
  try {
    response = await fetch(address, { headers: tag && !always ? { "If-None-Match": tag } : {}, credentials: "same-origin" });
    text = await response.text();
  } catch {
    fresh.textContent = "Server unreachable; this page may be out of date";
    return;
  }
  // The address may be another one by now, or the answer to a later question has come already.
  if (address !== here() || mine < answered) return;
  answered = mine;
  if (response.redirected) { location.assign(response.url); return; }
  if (response.status === 304) { fresh.textContent = ""; borrow(); return; }
  if (!response.ok) { fresh.textContent = `The server answered ${response.status}; this page may be out of date`; return; }
  tag = response.headers.get("ETag");
  const page = new DOMParser().parseFromString(text, "text/html");
  for (const part of main.querySelectorAll("[data-part]")) {
    const now = page.getElementById(part.id);
    if (!now || busy(part) || now.innerHTML === part.dataset.seen) continue;
    const seen = now.innerHTML;
    if (part.dataset.seen !== undefined || seen !== part.innerHTML) {
      keepOpen(part, now);
      const focused = part.contains(document.activeElement) && part !== document.activeElement ? finder(part, document.activeElement) : null;
      if (isNews) part.classList.add("changed");
      part.replaceChildren(...now.childNodes);
      part.addEventListener("animationend", () => part.classList.remove("changed"), { once: true });
      document.dispatchEvent(new CustomEvent("driftline:part", { detail: part }));
      // Who goes by keyboard would begin at the top of the page again.
      if (focused) {
        const twin = focused();
        if (twin === part) part.tabIndex = -1;
        twin.focus({ preventScroll: true });
      }
    }
    part.dataset.seen = seen;
  }
  fresh.textContent = "";
  borrow(always);
}

const tags = new Map();

/** Another page; null if it says nothing new. Throws if it cannot be loaded. */
async function loadPage(address, always) {
  const tag = always ? null : tags.get(address);
  const response = await fetch(address, { headers: tag ? { "If-None-Match": tag } : {}, credentials: "same-origin" });
  if (response.status === 304) return null;
  if (!response.ok || response.redirected) throw new Error(`${address} answered ${response.status}`);
  tags.set(address, response.headers.get("ETag"));
  return new DOMParser().parseFromString(await response.text(), "text/html");
}

/** Says below what a slot shows that it could not be loaded, with the way to the page. */
function reportUnloaded(slot) {
  // With its tag, the page would answer next time that it says nothing new.
  tags.delete(slot.dataset.load);
  if (slot.querySelector("[data-unloaded]")) return;
  const report = document.createElement("p");
  report.className = "notice";
  report.dataset.unloaded = "";
  const link = document.createElement("a");
  link.href = slot.dataset.load;
  link.textContent = "Open it on its own page";
  report.append("This part could not be loaded. ", link);
  slot.append(report);
}

/** Fills the slots that show a part of another page, which would take this one too long: with the element of that id. */
async function borrow(always = false) {
  const slots = [...document.querySelectorAll("main [data-load]")];
  const pages = new Map(slots.map((slot) => [slot.dataset.load, null]));
  for (const slot of slots) if (!tags.has(slot.dataset.load)) slot.setAttribute("aria-busy", "true");
  for (const address of pages.keys()) pages.set(address, loadPage(address, always).catch(() => undefined));
  await Promise.all(slots.map(async (slot) => {
    const page = await pages.get(slot.dataset.load);
    slot.removeAttribute("aria-busy");
    const part = page?.getElementById(slot.dataset.take);
    if (page !== null && !part) reportUnloaded(slot);
    else if (page && busy(slot)) tags.delete(slot.dataset.load);
    else if (page && part.outerHTML !== slot.innerHTML) fillSlot(slot, part);
    slot.dataset.came = "true";
  }));
}

function fillSlot(slot, part) {
  const focused = slot.contains(document.activeElement) ? finder(slot, document.activeElement) : null;
  const aim = location.hash.length > 1 && !slot.dataset.came ? location.hash : "";
  keepOpen(slot, part);
  slot.replaceChildren(part);
  if (focused) focused().focus({ preventScroll: true });
  // An address that names what is in here found nothing when the page came.
  if (aim && slot.querySelector(`#${CSS.escape(decodeURIComponent(aim.slice(1)))}`)) location.replace(aim);
}

borrow();
if (main) {
  for (const part of main.querySelectorAll("[data-part]")) part.dataset.seen = part.innerHTML;
  setInterval(refresh, 1000 * Number(main.dataset.live));
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
}
