"use strict";
// Reading of conversations: answers rendered or raw, as this browser remembers, and keys to go from match to match of a search.

const TEXTS_KEY = "driftline.texts";
let chosenTexts = readStored(TEXTS_KEY, "rendered");

/** Shows the answers as chosen, and a switch where a rendered answer is on the page. */
function showTexts() {
  document.documentElement.dataset.texts = chosenTexts;
  const hasRendered = document.querySelector(".rendered") !== null;
  for (const button of document.querySelectorAll("[data-texts-switch]")) {
    button.hidden = !hasRendered;
    button.textContent = chosenTexts === "raw" ? "Show rendered text" : "Show raw text";
  }
}

function switchTexts() {
  chosenTexts = chosenTexts === "raw" ? "rendered" : "raw";
  writeStored(TEXTS_KEY, chosenTexts);
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
