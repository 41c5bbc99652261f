"use strict";
// The inbox: a checkbox that selects all incidents of the page, and the number of selected ones.

const CHECKBOXES = '[data-bulk] input[name="incident"]';

/** Adds the checkbox that selects all incidents. */
function addSelectAll() {
  const cell = document.querySelector("[data-pick-all]");
  if (!cell || cell.querySelector("input")) return;
  const all = document.createElement("input");
  all.type = "checkbox";
  all.setAttribute("aria-label", "Select all on this page");
  all.addEventListener("change", () => {
    for (const box of document.querySelectorAll(CHECKBOXES)) box.checked = all.checked;
    showSelection();
  });
  cell.append(all);
  showSelection();
}

/** Shows the number of selected incidents. */
function showSelection() {
  const boxes = [...document.querySelectorAll(CHECKBOXES)];
  const count = boxes.filter((box) => box.checked).length;
  const all = document.querySelector("[data-pick-all] input");
  if (all) {
    all.checked = count > 0 && count === boxes.length;
    all.indeterminate = count > 0 && count < boxes.length;
  }
  const label = document.querySelector("[data-picked]");
  if (!label) return;
  label.dataset.label ||= label.textContent;
  label.textContent = count ? label.dataset.picked.replace("{count}", String(count)) : label.dataset.label;
  const bar = document.getElementById("bulk");
  bar.classList.toggle("picked", count > 0);
}

document.addEventListener("change", (event) => {
  if (event.target.matches(CHECKBOXES)) showSelection();
});
document.addEventListener("driftline:part", addSelectAll);
addSelectAll();

// After a form was sent, a reload must not send it again, and screen readers must announce the result.
const result = document.getElementById("result");
if (result) {
  history.replaceState(null, "", location.href);
  result.focus();
}
