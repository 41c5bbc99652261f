"use strict";
// Administration: shows a new token once, tries and saves the policy, and confirms irreversible actions by a typed name.

/** Returns the non-empty fields of a form. Attributes tell their types: data-number, data-list, and data-small for lower case. */
function readFields(form) {
  const body = {};
  for (const field of form.elements) {
    if (!field.name || field.value === "" || (field.type === "radio" && !field.checked)) continue;
    body[field.name] = "number" in field.dataset ? Number(field.value) : "list" in field.dataset ? field.value.split(" ") : "small" in field.dataset ? field.value.toLowerCase() : field.value;
  }
  return body;
}

/** Describes the value of a field in the words of the page. */
function describeField(form, name) {
  const field = form.elements[name];
  if (field instanceof RadioNodeList) return [...field].find((radio) => radio.checked)?.dataset.words ?? field.value;
  const option = field?.selectedOptions?.[0];
  if (option) return option.dataset.words ?? option.textContent;
  const { small, words, none } = field?.dataset ?? {};
  const value = small === undefined ? (field?.value ?? "") : field.value.toLowerCase();
  return words === undefined ? value : value ? words.replace("{value}", value) : none;
}

// A field with a list accepts only its names. Access to a misspelt project would be useless.
document.addEventListener("input", (event) => {
  const field = event.target;
  if (!("known" in (field.dataset ?? {}))) return;
  const name = field.value.toLowerCase();
  const isKnown = !name || [...field.list.options].some((option) => option.value === name);
  field.setCustomValidity(isKnown ? "" : field.dataset.known);
});

/** Describes the UTC day on which a new token expires. */
function describeExpiry(form, { until, forever }) {
  const days = Number(form.elements.expiresInDays?.value);
  return days ? until.replace("{day}", new Date(Date.now() + days * 86_400_000).toISOString().slice(0, 10)) : forever;
}

/** Issues a token and shows it once. */
function issue(form, button) {
  attempt(button, findProblemElement(form), async () => {
    const response = await send("POST", form.getAttribute("action"), readFields(form));
    if (!response.ok) return readProblem(response);
    const panel = document.querySelector("[data-made]");
    document.getElementById("made").textContent = (await response.json()).token;
    for (const element of document.querySelectorAll("[data-here]")) element.textContent = location.origin;
    for (const element of document.querySelectorAll("[data-chosen]")) element.textContent = describeField(form, element.dataset.chosen);
    for (const element of document.querySelectorAll("[data-may]")) element.textContent = describeField(form, "scopes").replace("{where}", describeField(form, "project"));
    for (const element of document.querySelectorAll("[data-until]")) element.textContent = describeExpiry(form, element.dataset);
    panel.hidden = false;
    form.hidden = true;
    panel.focus();
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
    const params = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""));
    location.assign(`${form.getAttribute("action")}${params.size ? `?${params}` : ""}`);
  }
});

// Irreversible actions are confirmed by typing a name.
document.addEventListener("input", (event) => {
  const form = event.target.closest("form[data-typed]");
  if (!form || !event.target.matches("[data-typing]")) return;
  form.querySelector('button[type="submit"]').disabled = event.target.value !== form.dataset.typed;
});

/** Replaces the content of an element by a part of a page. */
async function showPart(element, response) {
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  element.replaceChildren(...page.body.childNodes);
}

const editor = document.querySelector("[data-policy]");
if (editor) {
  const text = editor.elements.text;
  const save = editor.querySelector("[data-save]");
  const download = editor.querySelector("[data-download]");
  const problem = editor.querySelector("[data-problem]");
  let checked = null;

  const updateButtons = () => {
    const isChecked = checked !== null && checked === text.value;
    if (save) save.disabled = !isChecked || checked === text.defaultValue;
  };
  text.addEventListener("input", updateButtons);

  editor.addEventListener("submit", (event) => {
    event.preventDefault();
    const triedText = text.value;
    attempt(event.submitter, problem, async () => {
      const response = await send("POST", editor.dataset.trial, { text: triedText });
      if (!response.ok) return readProblem(response);
      const trial = document.getElementById("trial");
      await showPart(trial, response);
      checked = trial.querySelector("[data-valid]").dataset.valid === "true" ? triedText : null;
      updateButtons();
    });
  });

  save?.addEventListener("click", () => {
    attempt(save, problem, async () => {
      const response = await send("PUT", editor.getAttribute("action"), { text: checked, base: editor.dataset.base });
      if (!response.ok) return readProblem(response);
      text.defaultValue = text.value;
      location.reload();
    }).finally(updateButtons);
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
    if (file.size > text.maxLength) { showText(problem, "The file is too large for a policy."); return; }
    text.value = await file.text();
    event.target.value = "";
    updateButtons();
    text.focus();
  });

  // The button of a problem selects its line.
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

/** Waits until the server has restarted, then reloads the page. */
async function waitForRestart(status) {
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
  attempt(button, findProblemElement(button), async () => {
    const response = await send("POST", button.dataset.apply, {});
    if (!response.ok) return readProblem(response);
    await waitForRestart(document.querySelector("[data-applying]"));
  });
});
