"use strict";
// Shared by all pages: refresh without a reload, send forms, sign in and out, and copy texts.

const meta = document.querySelector('meta[name="driftline-page"]');

/** Sends a JSON request with the mark of this page, and returns the response. */
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

/** Adds a dialog to the page, which leaves it when it is closed, also by a click beside it. */
function createDialog(label) {
  const dialog = document.createElement("dialog");
  dialog.className = "palette";
  dialog.setAttribute("aria-label", label);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  document.body.append(dialog);
  return dialog;
}

/** Reads a value of this browser; `otherwise` if there is none or storage is off. */
function readStored(key, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function writeStored(key, value) {
  try {
    localStorage.setItem(key, JSON.stringify(value));
  } catch {
    // Without storage, the choice lasts as long as the page.
  }
}

/** Formats an error message of the API as a sentence. `sentence` in rendering.py does the same. */
function toSentence(error) {
  const text = /^[^\s:]+:\s/.test(error) ? `Not valid: ${error}` : error.slice(0, 1).toUpperCase() + error.slice(1);
  return /\n|[.!?…]$/.test(text) ? text : `${text}.`;
}

/** Returns the error message of a response as a sentence. */
async function readProblem(response) {
  try {
    return toSentence((await response.json()).error);
  } catch {
    return `The server answered ${response.status}.`;
  }
}

function showText(element, text) {
  element.textContent = text;
  element.hidden = !text;
}

// Announces the result of an action. It is outside the parts of the page, because a refresh may replace the part with the button.
const announcement = document.createElement("p");
announcement.className = "news";
announcement.setAttribute("role", "status");
document.body.append(announcement);
let announcementTimer = 0;

/** Formats a number as pages do, with commas between thousands. */
function formatNumber(number) {
  return number.toLocaleString("en");
}

/** Shows an announcement for ten seconds. `{name}` stands for a field of the server's answer, or for the length of a list. */
function announce(text, answer = {}) {
  const formatField = (_, name) => formatNumber(Array.isArray(answer[name]) ? answer[name].length : answer[name] ?? 0);
  announcement.textContent = text.replace(/\{(\w+)\}/g, formatField);
  clearTimeout(announcementTimer);
  announcementTimer = setTimeout(() => { announcement.textContent = ""; }, 10_000);
}

/** Finishes an action: opens the next page, or refreshes this one and announces the result. */
async function finish(element, response, form) {
  const text = element?.dataset.done || form?.dataset.done;
  const answer = text && response.status !== 204 ? await response.json() : {};
  const next = element?.dataset.then || form?.dataset.then;
  if (next) { location.assign(next); return; }
  await refresh(true);
  if (text) announce(text, answer);
}

/** Runs an action with its button disabled. A message that the action returns is shown as the problem. */
async function attempt(button, problem, action) {
  button.disabled = true;
  showText(problem, "");
  try {
    const message = await action();
    if (message) showText(problem, message);
  } catch {
    showText(problem, "Server unreachable. Nothing was changed. Try again.");
  } finally {
    button.disabled = false;
  }
}

/** Returns the element for error messages near an element, and creates it if necessary. */
function findProblemElement(element) {
  const container = element.closest("form, section, .panel, .card") || element.parentElement;
  let problem = container.querySelector("[data-problem]");
  if (!problem) {
    problem = document.createElement("p");
    problem.className = "problem";
    problem.setAttribute("role", "alert");
    problem.dataset.problem = "";
    container.append(problem);
  }
  return problem;
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.matches("[data-sign-in]")) {
    event.preventDefault();
    const token = form.elements.token.value.trim();
    attempt(form.querySelector("button"), findProblemElement(form), async () => {
      const response = await send("POST", "/api/audit/sign-in", {}, { Authorization: `Bearer ${token}` });
      if (!response.ok) return readProblem(response);
      location.assign(form.dataset.then || "/");
    });
  } else if (form.matches("[data-share]")) {
    event.preventDefault();
    attempt(form.querySelector("button"), findProblemElement(form), async () => {
      const body = { page: location.pathname + location.search, expiresInDays: Number(form.elements.expiresInDays.value) };
      const response = await send("POST", form.getAttribute("action"), body);
      if (!response.ok) return readProblem(response);
      const { path } = await response.json();
      form.querySelector("[data-shared-address]").textContent = location.origin + path;
      form.querySelector("[data-shared]").hidden = false;
    });
  } else if (form.matches("[data-send]")) {
    // The fields are sent as a JSON object without empty ones. Fields with data-number are sent as numbers.
    event.preventDefault();
    const body = {};
    for (const field of form.elements) {
      // Of the buttons, only the pressed one is sent, below.
      if (!field.name || field.value === "" || field.type === "submit" || (field.type === "radio" && !field.checked)) continue;
      body[field.name] = "number" in field.dataset ? Number(field.value) : field.value;
    }
    if (event.submitter?.name) body[event.submitter.name] = event.submitter.value;
    attempt(event.submitter || form.querySelector("button"), findProblemElement(form), async () => {
      const response = await send(form.dataset.send, form.getAttribute("action"), body);
      if (!response.ok) return readProblem(response);
      form.reset();
      form.closest("dialog")?.close();
      await finish(event.submitter, response, form);
    });
  }
});

// A box with data-find hides the elements of its selector that do not have its text.
document.addEventListener("input", (event) => {
  const { find } = event.target.dataset ?? {};
  if (!find) return;
  const text = event.target.value.trim().toLowerCase();
  for (const element of document.querySelectorAll(find)) element.hidden = !element.textContent.toLowerCase().includes(text);
});

// A link with a code in its fragment signs in once, or opens a shared page. The code leaves the history before it is used.
const signIn = document.querySelector("[data-sign-in]");
if (signIn && location.hash.length > 1) {
  const code = location.hash.slice(1);
  history.replaceState(null, "", location.pathname + location.search);
  attempt(signIn.querySelector("button"), findProblemElement(signIn), async () => {
    const response = await send("POST", "/api/audit/sign-in", {}, { Authorization: `Link ${code}` });
    if (!response.ok) return readProblem(response);
    // A shared link opens its page, and a sign-in link the requested one.
    location.replace(response.headers.get("Location") || signIn.dataset.then || "/");
  });
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-post], button[data-copy], button[data-copy-address]");
  if (!button) return;
  if (button.dataset.post) {
    attempt(button, findProblemElement(button), async () => {
      const response = await send("POST", button.dataset.post, {});
      if (!response.ok && response.status !== 401) return readProblem(response);
      await finish(button, response);
    });
  } else {
    (button.dataset.copy ? copy(document.querySelector(button.dataset.copy)) : copyAddress()).then((copied) => {
      button.dataset.label ||= button.textContent;
      button.setAttribute("aria-live", "polite");
      button.textContent = copied ? "Copied" : "Press Ctrl+C";
      setTimeout(() => { button.textContent = button.dataset.label; }, 2500);
    });
  }
});

/** Copies the text of an element. If the browser forbids it, for example without HTTPS, selects the text and tries the old API. */
async function copy(element) {
  try {
    await navigator.clipboard.writeText(element.textContent.trim());
    return true;
  } catch {
    getSelection().selectAllChildren(element);
    return document.execCommand("copy");
  }
}

/** Copies the address of the page. */
async function copyAddress() {
  const text = document.createElement("span");
  text.className = "visually-hidden";
  text.textContent = location.href;
  document.body.append(text);
  const copied = await copy(text);
  text.remove();
  return copied;
}

// Times are in the zone of this cookie. Until the reader chooses one, it is the zone of the browser.
const ZONE_COOKIE = "driftline_zone";
const browserZone = Intl.DateTimeFormat().resolvedOptions().timeZone;

function setZone(value) {
  document.cookie = `${ZONE_COOKIE}=${value}; path=/; max-age=31536000; samesite=strict${location.protocol === "https:" ? "; secure" : ""}`;
}

/** Fills the choice of zones when it is used, because there are hundreds. */
function listZones(select) {
  if (select.dataset.zones) return;
  select.dataset.zones = "all";
  const present = new Set([...select.options].map((option) => option.value));
  const add = (parent, name, text = name) => parent.append(Object.assign(document.createElement("option"), { value: name, textContent: text }));
  add(select, `browser:${browserZone}`, `As the browser: ${browserZone}`);
  const all = Object.assign(document.createElement("optgroup"), { label: "All zones" });
  for (const name of Intl.supportedValuesOf("timeZone")) if (!present.has(name)) add(all, name);
  select.append(all);
}

const zoneCookie = document.cookie.split("; ").find((text) => text.startsWith(`${ZONE_COOKIE}=`))?.slice(ZONE_COOKIE.length + 1);
const zoneSelect = document.querySelector("[data-zones]");
if (browserZone && (zoneCookie ?? "browser:").startsWith("browser:") && zoneCookie !== `browser:${browserZone}`) {
  setZone(`browser:${browserZone}`);
  if (zoneSelect && zoneSelect.value !== browserZone && document.cookie.includes(`${ZONE_COOKIE}=browser:`)) location.reload();
}
if (zoneSelect) {
  for (const name of ["pointerdown", "focus"]) zoneSelect.addEventListener(name, () => listZones(zoneSelect));
  zoneSelect.addEventListener("change", () => { setZone(zoneSelect.value); location.reload(); });
}

// Every time shows UTC and the browser's time on hover.
document.addEventListener("pointerover", (event) => {
  const element = event.target.closest?.("time[datetime]");
  if (!element || element.title) return;
  const format = (timeZone) => `${new Intl.DateTimeFormat("sv-SE", { timeZone, dateStyle: "short", timeStyle: "medium" }).format(new Date(element.dateTime))} ${timeZone}`;
  element.title = [...new Set(["UTC", browserZone, zoneSelect?.value || "UTC"])].map(format).join("\n");
});

/** Opens the page with another period, at an element. */
function showPeriod(period, id = "") {
  const address = new URL(location.href);
  for (const name of ["window", "since", "until", "zone", "cursor"]) address.searchParams.delete(name);
  for (const [name, value] of Object.entries(period)) if (value) address.searchParams.set(name, value);
  address.hash = id;
  location.assign(address);
}

document.addEventListener("submit", (event) => {
  if (!event.target.matches("[data-custom-range]")) return;
  event.preventDefault();
  const { since, since_time: sinceTime, until, until_time: untilTime } = event.target.elements;
  const join = (day, clock) => (day.value && clock.value ? `${day.value}T${clock.value}` : day.value);
  showPeriod({ since: join(since, sinceTime), until: join(until, untilTime), zone: event.target.closest("[data-range]").dataset.zone });
});
document.addEventListener("click", (event) => {
  for (const open of document.querySelectorAll("details.popover[open]")) if (!open.contains(event.target)) open.open = false;
});
document.addEventListener("keydown", (event) => {
  const open = event.key === "Escape" && document.querySelector("details.popover[open]");
  if (!open) return;
  open.open = false;
  open.querySelector("summary").focus();
});

/** Scrolls rows of links that are wider than the screen to their current link. */
function scrollToCurrent(container) {
  for (const nav of container.querySelectorAll("nav")) {
    const current = nav.scrollWidth > nav.clientWidth && nav.querySelector("[aria-current]");
    if (current) nav.scrollLeft += current.getBoundingClientRect().left - nav.getBoundingClientRect().left - 12;
  }
}
scrollToCurrent(document);
document.addEventListener("driftline:part", (event) => scrollToCurrent(event.detail));

// Live pages: a refresh replaces only those parts of main[data-live] that have changed.
const main = document.querySelector("main[data-live]");
const freshness = document.querySelector("[data-fresh]");
let tag = null;

/** Returns whether a part has the focus in a field, or input that has not been sent. */
function hasInput(part) {
  if (part.contains(document.activeElement) && document.activeElement.matches("input, textarea, select")) return true;
  return [...part.querySelectorAll("textarea")].some((field) => field.value !== field.defaultValue)
    || [...part.querySelectorAll('input[type="checkbox"]')].some((box) => box.checked !== box.defaultChecked);
}

/** Opens the same details in a replacement as before. */
function copyOpenState(before, after) {
  for (const details of before.querySelectorAll("details[id]")) {
    const replacement = after.querySelector(`#${CSS.escape(details.id)}`);
    if (replacement) replacement.open = details.open;
  }
}

/** Returns a function that finds the replacement of an element after its part was replaced; the part itself if there is none. */
function createFinder(part, element) {
  const names = ["id", "href", "name", "value", "data-post", "data-copy"];
  const findMatches = () => [...part.querySelectorAll(element.localName)].filter((candidate) =>
    names.every((name) => candidate.getAttribute(name) === element.getAttribute(name)));
  const index = findMatches().indexOf(element);
  return () => findMatches()[index] || findMatches()[0] || part;
}

let lastRequest = 0;
let lastAnswered = 0;

/** Returns the address without its fragment. */
const pageAddress = () => location.pathname + location.search;

/** Refreshes the changed parts of the page. `always` ignores the ETag and runs on a hidden page, too; `isHighlighted` marks the changed parts. */
async function refresh(always = false, isHighlighted = true) {
  if (!main || (document.hidden && !always)) return;
  const address = pageAddress();
  const request = ++lastRequest;
  let response;
  let text;
  try {
    response = await fetch(address, { headers: tag && !always ? { "If-None-Match": tag } : {}, credentials: "same-origin" });
    text = await response.text();
  } catch {
    freshness.textContent = "Server unreachable; this page may be out of date";
    return;
  }
  // Ignore the answer if the address has changed, or if a later request was answered first.
  if (address !== pageAddress() || request < lastAnswered) return;
  lastAnswered = request;
  if (response.redirected) { location.assign(response.url); return; }
  if (response.status === 304) { freshness.textContent = ""; loadSlots(); return; }
  if (!response.ok) { freshness.textContent = `The server answered ${response.status}; this page may be out of date`; return; }
  tag = response.headers.get("ETag");
  const page = new DOMParser().parseFromString(text, "text/html");
  for (const part of main.querySelectorAll("[data-part]")) {
    const newPart = page.getElementById(part.id);
    if (!newPart || hasInput(part) || newPart.innerHTML === part.dataset.seen) continue;
    const content = newPart.innerHTML;
    if (part.dataset.seen !== undefined || content !== part.innerHTML) {
      copyOpenState(part, newPart);
      const findFocused = part.contains(document.activeElement) && part !== document.activeElement ? createFinder(part, document.activeElement) : null;
      if (isHighlighted) part.classList.add("changed");
      part.replaceChildren(...newPart.childNodes);
      part.addEventListener("animationend", () => part.classList.remove("changed"), { once: true });
      document.dispatchEvent(new CustomEvent("driftline:part", { detail: part }));
      // Without this, keyboard users would start at the top of the page again.
      if (findFocused) {
        const target = findFocused();
        if (target === part) part.tabIndex = -1;
        target.focus({ preventScroll: true });
      }
    }
    part.dataset.seen = content;
  }
  freshness.textContent = "";
  loadSlots(always);
}

const tags = new Map();

/** Loads another page; null if it has not changed. Throws if it cannot be loaded. */
async function loadPage(address, always) {
  const tag = always ? null : tags.get(address);
  const response = await fetch(address, { headers: tag ? { "If-None-Match": tag } : {}, credentials: "same-origin" });
  if (response.status === 304) return null;
  if (!response.ok || response.redirected) throw new Error(`${address} answered ${response.status}`);
  tags.set(address, response.headers.get("ETag"));
  return new DOMParser().parseFromString(await response.text(), "text/html");
}

/** Reports in a slot that its content could not be loaded, with a link to the other page. */
function reportLoadFailure(slot) {
  // Forget the ETag, or the next request would find the page unchanged.
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

/** Fills the slots of the page, each with an element of another page that takes longer to build. */
async function loadSlots(always = false) {
  const slots = [...document.querySelectorAll("main [data-load]")];
  const pages = new Map(slots.map((slot) => [slot.dataset.load, null]));
  for (const slot of slots) if (!tags.has(slot.dataset.load)) slot.setAttribute("aria-busy", "true");
  for (const address of pages.keys()) pages.set(address, loadPage(address, always).catch(() => undefined));
  await Promise.all(slots.map(async (slot) => {
    const page = await pages.get(slot.dataset.load);
    slot.removeAttribute("aria-busy");
    const part = page?.getElementById(slot.dataset.take);
    if (page !== null && !part) reportLoadFailure(slot);
    else if (page && hasInput(slot)) tags.delete(slot.dataset.load);
    else if (page && part.outerHTML !== slot.innerHTML) fillSlot(slot, part);
    slot.dataset.loaded = "true";
  }));
}

function fillSlot(slot, part) {
  const findFocused = slot.contains(document.activeElement) ? createFinder(slot, document.activeElement) : null;
  const target = location.hash.length > 1 && !slot.dataset.loaded ? location.hash : "";
  copyOpenState(slot, part);
  slot.replaceChildren(part);
  if (findFocused) findFocused().focus({ preventScroll: true });
  // The target of the address was missing until the slot was filled.
  if (target && slot.querySelector(`#${CSS.escape(decodeURIComponent(target.slice(1)))}`)) location.replace(target);
}

loadSlots();
if (main) {
  for (const part of main.querySelectorAll("[data-part]")) part.dataset.seen = part.innerHTML;
  setInterval(refresh, 1000 * Number(main.dataset.live));
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
}
