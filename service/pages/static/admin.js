"use strict";
// The administration: shows a made token once, tries and saves the policy, and asks for a typed name.

/** The fields of a form as JSON: empty ones are left out; numbers and lists are what data-number and data-list say. */
function fieldsOf(form) {
  const body = {};
  for (const field of form.elements) {
    if (!field.name || field.value === "" || (field.type === "radio" && !field.checked)) continue;
    body[field.name] = "number" in field.dataset ? Number(field.value) : "list" in field.dataset ? field.value.split(" ") : "small" in field.dataset ? field.value.toLowerCase() : field.value;
  }
  // SQL reads every project: who administers one of them does without.
  if (body.project && body.scopes?.includes("admin")) body.scopes = body.scopes.filter((scope) => scope !== "query");
  return body;
}

/** What was chosen in a field, in the words that the page has for it. */
function chosenIn(form, name) {
  const field = form.elements[name];
  if (field instanceof RadioNodeList) return [...field].find((one) => one.checked)?.dataset.words ?? field.value;
  const option = field?.selectedOptions?.[0];
  if (option) return option.dataset.words ?? option.textContent;
  const { small, words, none } = field?.dataset ?? {};
  const value = small === undefined ? (field?.value ?? "") : field.value.toLowerCase();
  return words === undefined ? value : value ? words.replace("{value}", value) : none;
}

// A field with a list of names takes one of them: access to a misspelt project would be access to nothing.
document.addEventListener("input", (event) => {
  const field = event.target;
  if (!("known" in (field.dataset ?? {}))) return;
  const name = field.value.toLowerCase();
  const isKnown = !name || [...field.list.options].some((one) => one.value === name);
  field.setCustomValidity(isKnown ? "" : field.dataset.known);
});

/** Says until which UTC day a token lasts that is made now, in the words that the page has for that. */
function untilOf(form, { until, forever }) {
  const days = Number(form.elements.expiresInDays?.value);
  return days ? until.replace("{day}", new Date(Date.now() + days * 86_400_000).toISOString().slice(0, 10)) : forever;
}

/** Makes a token and shows it, this once. */
function issue(form, button) {
  attempt(button, problemBeside(form), async () => {
    const response = await send("POST", form.getAttribute("action"), fieldsOf(form));
    if (!response.ok) return problemOf(response);
    const made = document.querySelector("[data-made]");
    document.getElementById("made").textContent = (await response.json()).token;
    for (const here of document.querySelectorAll("[data-here]")) here.textContent = location.origin;
    for (const chosen of document.querySelectorAll("[data-chosen]")) chosen.textContent = chosenIn(form, chosen.dataset.chosen);
    for (const place of document.querySelectorAll("[data-may]")) place.textContent = chosenIn(form, "scopes").replace("{where}", chosenIn(form, "project"));
    for (const place of document.querySelectorAll("[data-until]")) place.textContent = untilOf(form, place.dataset);
    made.hidden = false;
    form.hidden = true;
    made.focus();
    refresh(true);
  });
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.matches("[data-issue]")) {
    event.preventDefault();
    issue(form, event.submitter || form.querySelector("button"));
  } else if (form.matches("[data-goto]")) {
    event.preventDefault();
    const asked = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""));
    location.assign(`${form.getAttribute("action")}${asked.size ? `?${asked}` : ""}`);
  }
});

// What cannot be taken back is confirmed by its name.
document.addEventListener("input", (event) => {
  const form = event.target.closest("form[data-typed]");
  if (!form || !event.target.matches("[data-typing]")) return;
  form.querySelector('button[type="submit"]').disabled = event.target.value !== form.dataset.typed;
});

/** Puts a part of the server's pages at a place. */
async function place(where, response) {
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  where.replaceChildren(...page.body.childNodes);
}

const editor = document.querySelector("[data-policy]");
if (editor) {
  const text = editor.elements.text;
  const save = editor.querySelector("[data-save]");
  const download = editor.querySelector("[data-download]");
  const problem = editor.querySelector("[data-problem]");
  let checked = null;

  const usable = () => {
    const same = checked !== null && checked === text.value;
    if (save) save.disabled = !same || checked === text.defaultValue;
    download.disabled = !same;
  };
  text.addEventListener("input", usable);

  editor.addEventListener("submit", (event) => {
    event.preventDefault();
    const tried = text.value;
    attempt(event.submitter, problem, async () => {
      const response = await send("POST", editor.dataset.trial, { text: tried });
      if (!response.ok) return problemOf(response);
      const where = document.getElementById("trial");
      await place(where, response);
      checked = where.querySelector("[data-valid]").dataset.valid === "true" ? tried : null;
      usable();
    });
  });

  save?.addEventListener("click", () => {
    attempt(save, problem, async () => {
      const response = await send("PUT", editor.getAttribute("action"), { text: checked, base: editor.dataset.base });
      if (!response.ok) return problemOf(response);
      text.defaultValue = text.value;
      location.reload();
    }).finally(usable);
  });

  download.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text.value], { type: "application/yaml" }));
    link.download = "policy.yaml";
    link.click();
    URL.revokeObjectURL(link.href);
  });

  editor.querySelector("[data-upload]").addEventListener("change", async (event) => {
    const [file] = event.target.files;
    if (!file) return;
    if (file.size > text.maxLength) { show(problem, "The file is too large for a policy."); return; }
    text.value = await file.text();
    event.target.value = "";
    usable();
    text.focus();
  });

  // A problem leads to its line.
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-line]");
    if (!button) return;
    const lines = text.value.split("\n");
    const before = lines.slice(0, button.dataset.line - 1).reduce((sum, line) => sum + line.length + 1, 0);
    text.focus();
    text.setSelectionRange(before, before + (lines[button.dataset.line - 1] || "").length);
    text.scrollTop = (button.dataset.line - 4) * parseFloat(getComputedStyle(text).lineHeight);
  });
}

/** Waits until the server has gone and come back, then loads the page again. */
async function backAgain(status) {
  const wait = () => new Promise((resolve) => { setTimeout(resolve, 500); });
  status.textContent = "Restarting …";
  for (;;) {
    await wait();
    const response = await fetch(location.href, { credentials: "same-origin", cache: "no-store" }).catch(() => null);
    if (!response?.ok) continue;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    if (!page.querySelector("[data-apply]")) { location.reload(); return; }
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-apply]");
  if (!button) return;
  attempt(button, problemBeside(button), async () => {
    const response = await send("POST", button.dataset.apply, {});
    if (!response.ok) return problemOf(response);
    await backAgain(document.querySelector("[data-applying]"));
  });
});
