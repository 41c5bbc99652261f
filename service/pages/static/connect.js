"use strict";
// The page that connects an agent: makes a token, shows it once, and puts it into the lines below. It is kept in this page alone.

let token = "";

/** Puts the token into the lines, where the server has only a place for it. */
function fill() {
  if (!token) return;
  for (const lines of document.querySelectorAll("#lines-of-stack pre")) {
    lines.textContent = lines.textContent.replaceAll("dl_…", token);
  }
}

/** Has the address name a connection or stack from now on, so that what is asked of the server is of that one. */
function name(what, value) {
  const address = new URL(location.href);
  address.searchParams.set(what, value);
  history.replaceState(null, "", address);
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.matches("[data-connect]")) return;
  event.preventDefault();
  const body = { name: form.elements.name.value, project: form.elements.project.value };
  attempt(form.querySelector("button"), problemBeside(form), async () => {
    const response = await send("POST", "/api/audit/connections", body);
    if (!response.ok) return problemOf(response);
    ({ token } = await response.json());
    document.getElementById("made").textContent = token;
    document.querySelector("[data-made]").hidden = false;
    fill();
    name("connection", body.name);
    await refresh(true);
  });
});

// Another stack's lines come without leaving the page: the token would be gone with it.
document.addEventListener("click", async (event) => {
  const link = event.target.closest("a[data-stack]");
  if (!link || !token) return;
  event.preventDefault();
  const response = await fetch(link.href, { credentials: "same-origin" });
  if (!response.ok) { location.assign(link.href); return; }
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  document.getElementById("lines-of-stack").replaceChildren(...page.getElementById("lines-of-stack").childNodes);
  name("stack", new URL(link.href).searchParams.get("stack"));
  fill();
  document.querySelector("a[data-stack][aria-current]").focus();
});
