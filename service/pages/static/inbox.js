"use strict";
// The inbox: checkboxes that select all incidents of the page or of one change, the number of selected ones, and changes to unfold.

const CHECKBOXES = '[data-bulk] input[name="incident"]';
const unfolded = new Set();

/** Shows the checkbox that selects all incidents, and folds the changes that several incidents have in common. */
function prepareList() {
  const all = document.querySelector("[data-pick-all]");
  if (all) all.hidden = false;
  for (const family of document.querySelectorAll("[data-family]")) {
    const fold = family.querySelector(".fold-family");
    fold.disabled = false;
    const box = family.querySelector("[data-pick-family]");
    if (box) box.hidden = false;
    showFamily(family);
  }
  showSelection();
}

function showFamily(family) {
  const isOpen = unfolded.has(family.dataset.family);
  family.classList.toggle("folded", !isOpen);
  family.querySelector(".fold-family").setAttribute("aria-expanded", String(isOpen));
}

/** Sets a checkbox for several others. */
function summarize(box, boxes) {
  const count = boxes.filter((other) => other.checked).length;
  box.checked = count > 0 && count === boxes.length;
  box.indeterminate = count > 0 && count < boxes.length;
}

/** Shows the number of selected incidents. */
function showSelection() {
  const boxes = [...document.querySelectorAll(CHECKBOXES)];
  const count = boxes.filter((box) => box.checked).length;
  const bar = document.getElementById("bulk");
  if (!bar) return;
  summarize(bar.querySelector("[data-pick-all] input"), boxes);
  for (const family of document.querySelectorAll("[data-family]")) {
    summarize(family.querySelector("[data-pick-family]"), [...family.querySelectorAll('input[name="incident"]')]);
  }
  const label = bar.querySelector("[data-picked]");
  label.textContent = label.dataset.picked.replace("{count}", String(count));
  label.hidden = !count;
  bar.querySelector("[data-unpicked]").hidden = count > 0;
  bar.classList.toggle("picked", count > 0);
  for (const button of bar.querySelectorAll('button[name="do"]')) button.disabled = !count;
}

document.addEventListener("change", (event) => {
  const box = event.target;
  if (box.matches("[data-pick-all] input")) {
    for (const other of document.querySelectorAll(CHECKBOXES)) other.checked = box.checked;
  } else if (box.matches("[data-pick-family]")) {
    for (const other of box.closest("[data-family]").querySelectorAll('input[name="incident"]')) other.checked = box.checked;
  } else if (!box.matches(CHECKBOXES)) return;
  showSelection();
});
document.addEventListener("click", (event) => {
  const family = event.target.closest(".fold-family")?.closest("[data-family]");
  if (!family) return;
  if (!unfolded.delete(family.dataset.family)) unfolded.add(family.dataset.family);
  showFamily(family);
});
document.addEventListener("driftline:part", prepareList);
prepareList();

// After a form was sent, a reload must not send it again, and screen readers must announce the result.
const result = document.getElementById("result");
if (result) {
  history.replaceState(null, "", location.href);
  result.focus();
}
