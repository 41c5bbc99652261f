"use strict";
// Filters of a list: what the fields say goes into the address, which the server reads.

const PAUSE = 200; // milliseconds without a key after which a list is asked for

/** The address that the fields of a form ask for, from the first page on. */
function asking(form) {
  const address = new URL(location.href);
  const asked = address.searchParams;
  asked.delete("cursor");
  // Which way round it goes belongs to an order.
  if (form.elements.sort && form.elements.sort.value !== (asked.get("sort") ?? "")) asked.delete("down");
  for (const field of form.elements) {
    if (!field.name) continue;
    if (field.value.trim()) asked.set(field.name, field.value.trim());
    else asked.delete(field.name);
  }
  return address;
}

document.addEventListener("submit", (event) => {
  if (!event.target.matches("[data-filters]")) return;
  event.preventDefault();
  if (event.target.dataset.filters === "live") narrow(event.target);
  else location.assign(asking(event.target));
});

// A list that is narrowed while one types: its parts come anew, and the form stays as it is, with its focus and its caret.
let pause = 0;
let narrowed = 0;

function narrow(form) {
  clearTimeout(pause);
  const address = asking(form);
  const turned = (one) => new URLSearchParams(one.search).get("down");
  // What an order is called depends on which way round it goes, and that is said in the form.
  if (turned(address) !== turned(location)) location.assign(address);
  else if (address.href !== location.href) {
    history.replaceState(null, "", address);
    showBusy(form, true);
    const mine = ++narrowed;
    refresh(true, false).finally(() => { if (mine === narrowed) showBusy(form, false); });
  } else showBusy(form, false);
}

/** Says that what is shown is not yet what the form asks for: a spinner beside the field, and the list is busy. */
function showBusy(form, isBusy) {
  for (const one of [form, document.getElementById("projects")]) {
    if (isBusy) one?.setAttribute("aria-busy", "true");
    else one?.removeAttribute("aria-busy");
  }
}

document.addEventListener("input", (event) => {
  const form = event.target.closest('[data-filters="live"]');
  if (!form) return;
  clearTimeout(pause);
  showBusy(form, true);
  pause = setTimeout(narrow, event.target.matches("select") ? 0 : PAUSE, form);
});

/** Whether a field says something else than the page that came with it. */
function isChanged(field) {
  if (!field.matches("select")) return field.value !== field.defaultValue;
  const initial = [...field.options].find((option) => option.defaultSelected) ?? field.options[0];
  return !initial.selected;
}

// Nobody heard what was typed before this script was there.
const live = document.querySelector('[data-filters="live"]');
if (live && [...live.elements].some(isChanged)) narrow(live);

document.addEventListener("keydown", (event) => {
  const field = document.querySelector('[data-filters="live"] input[type="search"]');
  if (!field || event.key !== "/" || event.target.matches("input, textarea, select")) return;
  event.preventDefault();
  field.focus();
});
