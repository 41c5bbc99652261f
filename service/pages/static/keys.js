"use strict";
// Keys of all pages: Ctrl+K opens a list of pages and projects to go to, ? the list of keys, and j, k and x move in a list and select.

const KEY_MEANINGS = [
  ["Ctrl+K", "Go to a page or project"],
  ["/", "Find in the list"],
  ["j, k", "Next or previous incident; Enter opens it"],
  ["x", "Select the incident"],
  ["r", "Answers rendered or raw"],
  ["n, p", "Next or previous match of a search"],
  ["?", "This list"],
];
const MAX_SHOWN_PLACES = 12;

function showKeys() {
  const dialog = createDialog("Keys");
  const list = document.createElement("dl");
  for (const [key, meaning] of KEY_MEANINGS) {
    const term = document.createElement("dt");
    const shape = document.createElement("kbd");
    shape.textContent = key;
    term.append(shape);
    const description = document.createElement("dd");
    description.textContent = meaning;
    list.append(term, description);
  }
  const close = document.createElement("button");
  close.textContent = "Close";
  close.addEventListener("click", () => dialog.close());
  dialog.append(list, close);
  dialog.showModal();
}

/** Returns the pages that this page links to in its header and tabs, with their addresses. */
function listPages() {
  const links = document.querySelectorAll("header.top nav a, nav.tabs a");
  return [...links].map((link) => [link.firstChild.textContent.trim(), link.href]);
}

async function listProjects() {
  try {
    const response = await fetch("/api/audit/projects?limit=1000", { credentials: "same-origin" });
    const { projects } = await response.json();
    return projects.map(({ project }) => [project, `/projects/${encodeURIComponent(project)}`]);
  } catch {
    return []; // The pages of the header can still be reached.
  }
}

function showPalette() {
  const dialog = createDialog("Go to");
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = "Page or project";
  field.setAttribute("aria-label", "Page or project");
  const list = document.createElement("ul");
  let places = listPages();
  const showPlaces = () => {
    const text = field.value.trim().toLowerCase();
    const matching = places.filter(([name]) => name.toLowerCase().includes(text)).slice(0, MAX_SHOWN_PLACES);
    list.replaceChildren(...matching.map(([name, address]) => {
      const item = document.createElement("li");
      const link = document.createElement("a");
      link.href = address;
      link.textContent = name;
      item.append(link);
      return item;
    }));
  };
  field.addEventListener("input", showPlaces);
  dialog.addEventListener("keydown", (event) => {
    const links = [...list.querySelectorAll("a")];
    const index = links.indexOf(document.activeElement);
    if (event.key === "Enter" && index < 0) links[0]?.click();
    else if (event.key === "ArrowDown") (links[index + 1] || links[0])?.focus();
    else if (event.key === "ArrowUp") (links[index - 1] || field).focus();
    else return;
    if (event.key !== "Enter" || index < 0) event.preventDefault();
  });
  dialog.append(field, list);
  dialog.showModal();
  showPlaces();
  listProjects().then((projects) => { places = [...places, ...projects]; showPlaces(); });
}

/** Moves the focus to the next or previous row of the list that can be selected. */
function moveInList(step) {
  const rows = [...document.querySelectorAll("[data-bulk] tbody tr")].filter((row) => row.offsetParent);
  const current = rows.findIndex((row) => row.contains(document.activeElement));
  const row = rows[current < 0 ? 0 : Math.min(Math.max(current + step, 0), rows.length - 1)];
  row?.querySelector("td a, td .fold-family")?.focus();
}

function toggleRow() {
  const row = document.activeElement.closest("[data-bulk] tbody tr");
  row?.querySelector('input[type="checkbox"]')?.click();
}

const ACTIONS = { "?": showKeys, j: () => moveInList(1), k: () => moveInList(-1), x: toggleRow };

document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    showPalette();
  } else if (!event.ctrlKey && !event.metaKey && !event.altKey && !event.target.matches('input:not([type="checkbox"]), textarea, select')) {
    ACTIONS[event.key]?.();
  }
});
