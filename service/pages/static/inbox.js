"use strict";
// The inbox: all incidents of the page are selected at once, and what to do with them is at hand once some are.

const PICKS = '[data-bulk] input[name="incident"]';

/** Puts a box above the boxes of the list, which selects them all; without a script there is none. */
function addPickAll() {
  const place = document.querySelector("[data-pick-all]");
  if (!place || place.querySelector("input")) return;
  const all = document.createElement("input");
  all.type = "checkbox";
  all.setAttribute("aria-label", "Select all on this page");
  // What it shows follows from the others: by itself it is nothing that somebody has selected.
  all.addEventListener("change", () => {
    for (const one of document.querySelectorAll(PICKS)) one.checked = all.checked;
    showPicked();
  });
  place.append(all);
  showPicked();
}

/** Says how many are selected. */
function showPicked() {
  const picks = [...document.querySelectorAll(PICKS)];
  const count = picks.filter((one) => one.checked).length;
  const all = document.querySelector("[data-pick-all] input");
  if (all) {
    all.checked = count > 0 && count === picks.length;
    all.indeterminate = count > 0 && count < picks.length;
  }
  const words = document.querySelector("[data-picked]");
  if (!words) return;
  words.dataset.words ||= words.textContent;
  words.textContent = count ? words.dataset.picked.replace("{count}", String(count)) : words.dataset.words;
  const bar = document.getElementById("bulk");
  bar.classList.toggle("picked", count > 0);
}

document.addEventListener("change", (event) => {
  if (event.target.matches(PICKS)) showPicked();
});
document.addEventListener("driftline:part", addPickAll);
addPickAll();

// After a form was sent, a reload shows the list and does not send it again; and who cannot see the page hears what was done.
const result = document.getElementById("result");
if (result) {
  history.replaceState(null, "", location.href);
  result.focus();
}
