"use strict";
// Review queues: sends the form of a queue, and adds exchanges and sessions to one.

const queueForm = document.querySelector("[data-queue-form]");

/** Returns the JSON of the form: fields named rule.X go into the rule. */
function readQueue(form) {
  const body = { rubric: form.elements.rubric.value, dimensions: [], assignees: [], reviews: Number(form.elements.reviews.value), rule: null };
  if (form.elements.rule.checked) body.rule = {};
  for (const field of form.elements) {
    if (field.name === "dimensions" || field.name === "assignees") {
      if (field.checked) body[field.name].push(field.value);
    } else if (body.rule && field.name.startsWith("rule.")) {
      const name = field.name.slice("rule.".length);
      if (field.type === "checkbox") body.rule[name] = field.checked;
      else if (field.value.trim()) body.rule[name] = field.type === "number" ? Number(field.value) : field.value.trim();
    }
  }
  return body;
}

function changeQueue(button, method) {
  const address = queueForm.dataset.queueForm + encodeURIComponent(queueForm.elements.name.value.trim());
  attempt(button, queueForm.querySelector("[data-problem]"), async () => {
    const response = await send(method, address, method === "PUT" ? readQueue(queueForm) : undefined);
    if (!response.ok) return readProblem(response);
    location.assign(queueForm.dataset.then);
  });
}

/** Returns what a form adds: the rows that are selected in the list before it, or what its page is about. */
function readAdditions(form) {
  const boxes = [...document.querySelectorAll('input[name="queue-item"]:checked')];
  const values = form.dataset.item ? [form.dataset.item] : boxes.map((box) => box.value);
  const items = values.map((value) => JSON.parse(value));
  const scores = items.filter((item) => item.score).map((item) => item.score);
  return [...(scores.length ? [{ scores }] : []), ...items.filter((item) => item.session)];
}

function addToQueue(form, button) {
  const queue = form.elements.queue.value;
  attempt(button, findProblemElement(form), async () => {
    const additions = readAdditions(form);
    if (!additions.length) return "Select rows first.";
    let changed = 0;
    for (const body of additions) {
      const response = await send("POST", `${form.dataset.addToQueue}${encodeURIComponent(queue)}/items`, body);
      if (!response.ok) return readProblem(response);
      changed += (await response.json()).changed;
    }
    for (const box of document.querySelectorAll('input[name="queue-item"]:checked')) box.checked = false;
    showPicked();
    announce(`${changed} exchange${changed === 1 ? "" : "s"} added to ${queue}.`);
  });
}

/** Shows how many rows are selected. */
function showPicked() {
  const bar = document.querySelector("[data-queue-bar]");
  if (!bar) return;
  const count = document.querySelectorAll('input[name="queue-item"]:checked').length;
  bar.classList.toggle("picked", count > 0);
  bar.querySelector("[data-count]").textContent = count ? `${count} selected` : "Select rows to review them";
}

document.addEventListener("submit", (event) => {
  if (event.target === queueForm) {
    event.preventDefault();
    changeQueue(event.submitter, "PUT");
  } else if (event.target.matches("[data-add-to-queue]")) {
    event.preventDefault();
    addToQueue(event.target, event.submitter);
  }
});
document.addEventListener("click", (event) => {
  if (event.target.matches("[data-close-queue]")) changeQueue(event.target, "DELETE");
});
document.addEventListener("change", (event) => { if (event.target.matches('input[name="queue-item"]')) showPicked(); });
document.addEventListener("driftline:part", showPicked);
showPicked();
