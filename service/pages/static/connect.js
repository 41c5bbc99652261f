"use strict";
// The page that connects an agent: issues a token, shows it once, and inserts it into the lines below. Only this page keeps the token.

let token = "";

/** Replaces the placeholder in the lines by the token. */
function insertToken() {
  if (!token) return;
  for (const lines of document.querySelectorAll("#lines-of-stack pre")) {
    lines.textContent = lines.textContent.replaceAll("dl_…", token);
  }
}

/** Sets a parameter of the address, so that a refresh keeps the connection and stack. */
function setParameter(name, value) {
  const address = new URL(location.href);
  address.searchParams.set(name, value);
  history.replaceState(null, "", address);
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.matches("[data-connect]")) return;
  event.preventDefault();
  const body = { name: form.elements.name.value, project: form.elements.project.value };
  attempt(form.querySelector("button"), findProblemElement(form), async () => {
    const response = await send("POST", "/api/audit/connections", body);
    if (!response.ok) return readProblem(response);
    ({ token } = await response.json());
    document.getElementById("made").textContent = token;
    document.querySelector("[data-made]").hidden = false;
    insertToken();
    setParameter("connection", body.name);
    await refresh(true);
  });
});

// Load another stack's lines without leaving the page, because that would lose the token.
document.addEventListener("click", async (event) => {
  const link = event.target.closest("a[data-stack]");
  if (!link || !token) return;
  event.preventDefault();
  const response = await fetch(link.href, { credentials: "same-origin" });
  if (!response.ok) { location.assign(link.href); return; }
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  document.getElementById("lines-of-stack").replaceChildren(...page.getElementById("lines-of-stack").childNodes);
  setParameter("stack", new URL(link.href).searchParams.get("stack"));
  insertToken();
  document.querySelector("a[data-stack][aria-current]").focus();
});
