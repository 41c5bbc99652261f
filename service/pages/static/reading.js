"use strict";
// Reading of conversations: answers rendered or raw, as this browser remembers, and keys to go from match to match of a search.

const TEXTS_KEY = "driftline-texts";

/** Shows the answers as this browser remembers, and a switch where a rendered answer is on the page. */
function showTexts() {
  let isRaw = false;
  try {
    isRaw = localStorage.getItem(TEXTS_KEY) === "raw";
  } catch {
    // Storage may be forbidden. The choice then holds for this page alone.
    isRaw = document.documentElement.dataset.texts === "raw";
  }
  document.documentElement.dataset.texts = isRaw ? "raw" : "rendered";
  const hasRendered = document.querySelector(".rendered") !== null;
  for (const button of document.querySelectorAll("[data-texts-switch]")) {
    button.hidden = !hasRendered;
    button.textContent = isRaw ? "Show rendered text" : "Show raw text";
  }
}

function switchTexts() {
  const next = document.documentElement.dataset.texts === "raw" ? "rendered" : "raw";
  document.documentElement.dataset.texts = next;
  try {
    localStorage.setItem(TEXTS_KEY, next);
  } catch {
    // As above.
  }
  showTexts();
}

showTexts();
document.addEventListener("driftline:part", showTexts);
if (!location.hash) document.querySelector("[data-current]")?.scrollIntoView();

document.addEventListener("click", (event) => {
  if (event.target.closest("[data-texts-switch]")) switchTexts();
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
  if (event.key === "r" && document.querySelector("[data-texts-switch]:not([hidden])")) switchTexts();
  if (event.key === "n" || event.key === "p") document.querySelector(`[data-key="${event.key}"]`)?.click();
});
