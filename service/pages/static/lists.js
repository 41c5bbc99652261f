"use strict";
// Filters of a list: the values of the fields become parameters of the address.

const TYPING_PAUSE_MS = 200; // a live list is filtered after this pause

/** Returns the address of the first page with the filters of a form. */
function buildAddress(form) {
  const address = new URL(location.href);
  const params = address.searchParams;
  params.delete("cursor");
  // The direction belongs to the previous order.
  if (form.elements.sort && form.elements.sort.value !== (params.get("sort") ?? "")) params.delete("down");
  for (const field of form.elements) {
    if (!field.name) continue;
    if (field.value.trim()) params.set(field.name, field.value.trim());
    else params.delete(field.name);
  }
  return address;
}

document.addEventListener("submit", (event) => {
  if (!event.target.matches("[data-filters]")) return;
  event.preventDefault();
  if (event.target.dataset.filters === "live") filterList(event.target);
  else location.assign(buildAddress(event.target));
});

// A live list is filtered while typing. Only its parts are replaced, so the form keeps its focus and caret.
let typingTimer = 0;
let lastFilterRequest = 0;

function filterList(form) {
  clearTimeout(typingTimer);
  const address = buildAddress(form);
  const readDirection = (place) => new URLSearchParams(place.search).get("down");
  // The labels of the orders depend on the direction, so a new direction reloads the form.
  if (readDirection(address) !== readDirection(location)) location.assign(address);
  else if (address.href !== location.href) {
    history.replaceState(null, "", address);
    showBusy(form, true);
    const request = ++lastFilterRequest;
    refresh(true, false).finally(() => { if (request === lastFilterRequest) showBusy(form, false); });
  } else showBusy(form, false);
}

/** Marks the form and the list as busy or not. */
function showBusy(form, isBusy) {
  for (const element of [form, document.getElementById("projects")]) {
    if (isBusy) element?.setAttribute("aria-busy", "true");
    else element?.removeAttribute("aria-busy");
  }
}

document.addEventListener("input", (event) => {
  const form = event.target.closest('[data-filters="live"]');
  if (!form) return;
  clearTimeout(typingTimer);
  showBusy(form, true);
  typingTimer = setTimeout(filterList, event.target.matches("select") ? 0 : TYPING_PAUSE_MS, form);
});

/** Returns whether a field differs from its value in the loaded page. */
function isChanged(field) {
  if (!field.matches("select")) return field.value !== field.defaultValue;
  const initial = [...field.options].find((option) => option.defaultSelected) ?? field.options[0];
  return !initial.selected;
}

// Apply input that was typed before this script was loaded.
const live = document.querySelector('[data-filters="live"]');
if (live && [...live.elements].some(isChanged)) filterList(live);

document.addEventListener("keydown", (event) => {
  const field = document.querySelector('[data-filters="live"] input[type="search"]');
  if (!field || event.key !== "/" || event.target.matches("input, textarea, select")) return;
  event.preventDefault();
  field.focus();
});
