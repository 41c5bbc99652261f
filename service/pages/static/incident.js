"use strict";
// The page of an incident: buttons fill in common reasons, blank reasons are refused, and links unfold their target.

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-reason]");
  if (!button) return;
  const field = button.form.elements.comment;
  const text = field.value.trim();
  // A common reason is appended to text that was already written.
  field.value = text && !text.includes(button.textContent) ? `${text} ${button.textContent}` : button.textContent;
  field.dispatchEvent(new Event("input", { bubbles: true }));
  field.focus();
});

// The evidence is folded. A link to a section unfolds it.
const unfoldTarget = () => {
  const part = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const fold = part && part.querySelector(":scope > details");
  if (!fold) return;
  fold.open = true;
  part.scrollIntoView();
};
addEventListener("hashchange", unfoldTarget);
unfoldTarget();

document.addEventListener("input", (event) => {
  const field = event.target;
  if (field.matches("textarea[required]")) field.setCustomValidity(field.value && !field.value.trim() ? "Give the reason in a few words." : "");
});
