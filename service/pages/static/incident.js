"use strict";
// The page of an incident: usual reasons are a tap away, and one of blanks alone is none; links open the part they lead to.

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

// Evidence is folded: a link to a part of it opens that part.
const unfold = () => {
  const part = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const fold = part && part.querySelector(":scope > details");
  if (!fold) return;
  fold.open = true;
  part.scrollIntoView();
};
addEventListener("hashchange", unfold);
unfold();

document.addEventListener("input", (event) => {
  const field = event.target;
  if (field.matches("textarea[required]")) field.setCustomValidity(field.value && !field.value.trim() ? "Give the reason in a few words." : "");
});
