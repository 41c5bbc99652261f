"use strict";
// Zooming, dragging and keyboard navigation of the causal graph. Without this script, the graph is a scrollable image with links.

const MIN_SCALE = 0.25;
const MAX_SCALE = 3;
const ZOOM_FACTOR = 1.25;
let scale = 1;

function findGraph(element) {
  return element.closest("#graph")?.querySelector("[data-graph]");
}

function resize(graph) {
  for (const image of graph.querySelectorAll("svg")) {
    const [, , width, height] = image.getAttribute("viewBox").split(" ").map(Number);
    image.setAttribute("width", Math.round(width * scale));
    image.setAttribute("height", Math.round(height * scale));
  }
}

/** Zooms by a number of steps, or fits the graph into the view if `steps` is 0. The centre of the view stays in place. */
function zoom(graph, steps) {
  const center = (graph.scrollLeft + graph.clientWidth / 2) / graph.scrollWidth;
  const fullWidth = graph.scrollWidth / scale;
  const newScale = steps === 0 ? graph.clientWidth / fullWidth : scale * ZOOM_FACTOR ** steps;
  scale = Math.min(MAX_SCALE, Math.max(MIN_SCALE, newScale));
  resize(graph);
  graph.scrollLeft = center * graph.scrollWidth - graph.clientWidth / 2;
}

/** Makes one node reachable with the tab key. The arrow keys lead to the others. */
function initGraph() {
  const graph = document.querySelector("[data-graph]");
  if (!graph) return;
  document.querySelector("[data-zoom]").hidden = false;
  if (scale !== 1) resize(graph);
  const nodes = [...graph.querySelectorAll("[data-node]")];
  const first = nodes.find((node) => node.classList.contains("evidence")) || nodes[0];
  for (const node of nodes) node.setAttribute("tabindex", node === first ? "0" : "-1");
}

/** Moves the focus to the next node in a direction (1 or -1), or to the next one with a class. */
function moveFocus(node, direction, className) {
  const nodes = [...node.closest("svg").querySelectorAll("[data-node]")];
  let index = nodes.indexOf(node) + direction;
  while (nodes[index] && className && !nodes[index].classList.contains(className)) index += direction;
  const target = nodes[index];
  if (!target) return;
  node.setAttribute("tabindex", "-1");
  target.setAttribute("tabindex", "0");
  target.focus();
  target.scrollIntoView({ block: "nearest", inline: "center" });
}

const KEYS = {
  ArrowRight: (node) => moveFocus(node, 1),
  ArrowLeft: (node) => moveFocus(node, -1),
  ArrowDown: (node) => moveFocus(node, 1, "evidence"),
  ArrowUp: (node) => moveFocus(node, -1, "evidence"),
  "+": (node) => zoom(findGraph(node), 1),
  "-": (node) => zoom(findGraph(node), -1),
  0: (node) => zoom(findGraph(node), 0),
};

document.addEventListener("keydown", (event) => {
  const node = event.target.closest?.("[data-node]");
  if (!node || event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(KEYS, event.key)) return;
  event.preventDefault();
  KEYS[event.key](node);
});

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-zoom] button");
  if (button) zoom(findGraph(button), Number(button.dataset.by));
});

// Dragging with the mouse scrolls the graph. Touch screens scroll it natively. A drag must not follow the link under the pointer.
let drag = null;
let isDragged = false;
document.addEventListener("pointerdown", (event) => {
  const graph = event.target.closest?.("[data-graph]");
  isDragged = false;
  drag = graph && event.pointerType === "mouse" && event.button === 0 ? { graph, x: event.clientX, left: graph.scrollLeft } : null;
});
document.addEventListener("pointermove", (event) => {
  if (!drag) return;
  const distance = event.clientX - drag.x;
  isDragged ||= Math.abs(distance) > 5;
  if (isDragged) drag.graph.scrollLeft = drag.left - distance;
});
document.addEventListener("pointerup", () => { drag = null; });
document.addEventListener("click", (event) => {
  if (isDragged && event.target.closest?.("[data-graph]")) event.preventDefault();
  isDragged = false;
}, { capture: true });
document.addEventListener("dragstart", (event) => { if (event.target.closest?.("[data-graph]")) event.preventDefault(); });

document.addEventListener("driftline:part", initGraph);
initGraph();
