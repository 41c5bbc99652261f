"use strict";
// The page of an incident: usual reasons are a tap away, and one of blanks alone is none.

document.addEventListener("click", (event) => {
  const usual = event.target.closest("[data-reason]");
  if (!usual) return;
  const field = usual.form.elements.comment;
  const said = field.value.trim();
  // What somebody wrote stays: a usual reason is put behind it.
  field.value = said && !said.includes(usual.textContent) ? `${said} ${usual.textContent}` : usual.textContent;
  field.dispatchEvent(new Event("input", { bubbles: true }));
  field.focus();
});

document.addEventListener("input", (event) => {
  const field = event.target;
  if (field.matches("textarea[required]")) field.setCustomValidity(field.value && !field.value.trim() ? "Give the reason in a few words." : "");
});
