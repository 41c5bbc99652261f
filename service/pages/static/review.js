"use strict";
// The review queue: scores exchanges by key or button, skips them, and loads the next one without reloading the page.

const queue = document.getElementById("queue");
const statusMessage = document.querySelector("[data-said]");
const scored = []; // recently scored ids, skipped because their records may not be stored yet
const MAX_SCORED = 20;

const EARLIER_KEY = "driftline.earlier";

/** Opens the earlier turns if they were open at the last exchange. */
function foldEarlier() {
  const earlier = document.getElementById("earlier");
  if (!earlier) return;
  earlier.open = readStored(EARLIER_KEY, false);
  earlier.addEventListener("toggle", () => writeStored(EARLIER_KEY, earlier.open));
}
foldEarlier();

/** Shows the queue of another address. `remember` adds that address to the history. Returns an error message, or an empty text. */
async function showQueue(address, remember) {
  const request = new URL(address, location.href);
  for (const id of scored) request.searchParams.append("skip", id);
  const response = await fetch(request, { credentials: "same-origin" });
  if (response.redirected) { location.assign(response.url); return ""; }
  if (!response.ok) return `The server answered ${response.status}. Reload the page.`;
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  if (remember) history.pushState(null, "", address);
  const item = queue.querySelector("[data-item]")?.dataset.item;
  const comment = queue.querySelector("#comment")?.value;
  queue.replaceChildren(...page.getElementById("queue").childNodes);
  // Keep the comment if the same exchange is shown with or without the verdict.
  if (comment && item === queue.querySelector("[data-item]")?.dataset.item) queue.querySelector("#comment").value = comment;
  foldEarlier();
  document.dispatchEvent(new CustomEvent("driftline:part", { detail: queue }));
  const blindLink = document.getElementById("blind");
  const newBlindLink = page.getElementById("blind");
  if (blindLink && newBlindLink) blindLink.replaceWith(newBlindLink);
  const heading = document.getElementById("item");
  if (heading) {
    heading.focus({ preventScroll: true });
    scrollTo(0, 0);
  } else {
    queue.querySelector("h2")?.setAttribute("tabindex", "-1");
    queue.querySelector("h2")?.focus();
  }
  return "";
}

async function score(form, button) {
  const id = queue.querySelector("[data-item]").dataset.item;
  const comment = form.elements.comment.value.trim();
  const points = [...form.querySelectorAll("[data-dimension]:checked")].map((field) => [field.dataset.dimension, Number(field.value)]);
  const queueName = form.dataset.queue;
  const body = {
    score: Number(button.value),
    ...(comment && { comment }),
    ...(queueName && { queue: queueName }),
    ...(points.length && { dimensions: Object.fromEntries(points) }),
  };
  await attempt(button, form.querySelector("[data-problem]"), async () => {
    const response = await send("POST", form.getAttribute("action"), body);
    if (!response.ok) return readProblem(response);
    scored.push(id);
    scored.splice(0, scored.length - MAX_SCORED);
    statusMessage.textContent = `Scored ${body.score}. To change it, score again; the newest score counts. `;
    const link = document.createElement("a");
    link.href = `${location.pathname.replace(/review$/, "exchanges/")}${encodeURIComponent(id)}`;
    link.textContent = "View it";
    statusMessage.append(link);
    loadSlots();
    return showQueue(location.href, false);
  });
}

function skip(link) {
  statusMessage.textContent = "Skipped. It will come up again later.";
  showQueue(link.href, true).catch(() => location.assign(link.href));
}

document.addEventListener("submit", (event) => {
  if (!event.target.matches("[data-review]")) return;
  event.preventDefault();
  if (event.submitter) score(event.target, event.submitter);
});

document.addEventListener("click", (event) => {
  const link = event.target.closest("[data-skip]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  skip(link);
});

addEventListener("popstate", () => { showQueue(location.href, false).catch(() => location.reload()); });

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  const isTyping = event.target.matches('input:not([type="radio"]), textarea, select');
  if (isTyping) {
    if (event.key === "Escape") document.getElementById("item")?.focus({ preventScroll: true });
    return;
  }
  const button = queue.querySelector(`[data-review] button[value="${CSS.escape(event.key)}"]`);
  const link = event.key.toLowerCase() === "s" && queue.querySelector("[data-skip]");
  const comment = event.key.toLowerCase() === "c" && queue.querySelector("#comment");
  const earlier = event.key.toLowerCase() === "e" && document.getElementById("earlier");
  const blind = event.key.toLowerCase() === "b" && document.getElementById("blind");
  if (!button && !link && !comment && !blind && !earlier) return;
  event.preventDefault();
  if (button && !queue.querySelector("[data-review] button:disabled")) button.click();
  if (link) skip(link);
  if (comment) comment.focus();
  if (earlier) earlier.open = !earlier.open;
  if (blind) showQueue(blind.href, true).catch(() => location.assign(blind.href));
});
