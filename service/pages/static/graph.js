"use strict";
// The causal graph: larger and smaller, and from event to event by the arrow keys. Without this it is a picture that scrolls, with links.

const SMALLEST = 0.25;
const LARGEST = 3;
const STEP = 1.25;
let scale = 1;

function graphOf(element) {
  return element.closest("#graph")?.querySelector("[data-graph]");
}

function resize(graph) {
  for (const image of graph.querySelectorAll("svg")) {
    const [, , width, height] = image.getAttribute("viewBox").split(" ").map(Number);
    image.setAttribute("width", Math.round(width * scale));
    image.setAttribute("height", Math.round(height * scale));
  }
}

/** Changes the size, and keeps in the middle what was there. */
function zoom(graph, by) {
  const middle = (graph.scrollLeft + graph.clientWidth / 2) / graph.scrollWidth;
  const whole = graph.scrollWidth / scale;
  const wanted = by === 0 ? graph.clientWidth / whole : scale * STEP ** by;
  scale = Math.min(LARGEST, Math.max(SMALLEST, wanted));
  resize(graph);
  graph.scrollLeft = middle * graph.scrollWidth - graph.clientWidth / 2;
}

/** Only one node is reached by the tab key; from there on the arrows lead. */
function prepare() {
  const graph = document.querySelector("[data-graph]");
  if (!graph) return;
  document.querySelector("[data-zoom]").hidden = false;
  if (scale !== 1) resize(graph);
  const nodes = [...graph.querySelectorAll("[data-node]")];
  const first = nodes.find((node) => node.classList.contains("evidence")) || nodes[0];
  for (const node of nodes) node.setAttribute("tabindex", node === first ? "0" : "-1");
}

function move(node, by, wanted) {
  const nodes = [...node.closest("svg").querySelectorAll("[data-node]")];
  let at = nodes.indexOf(node) + by;
  while (nodes[at] && wanted && !nodes[at].classList.contains(wanted)) at += by;
  if (!nodes[at]) return;
  node.setAttribute("tabindex", "-1");
  nodes[at].setAttribute("tabindex", "0");
  nodes[at].focus();
  nodes[at].scrollIntoView({ block: "nearest", inline: "center" });
}

const KEYS = {
  ArrowRight: (node) => move(node, 1),
  ArrowLeft: (node) => move(node, -1),
  ArrowDown: (node) => move(node, 1, "evidence"),
  ArrowUp: (node) => move(node, -1, "evidence"),
  "+": (node) => zoom(graphOf(node), 1),
  "-": (node) => zoom(graphOf(node), -1),
  0: (node) => zoom(graphOf(node), 0),
};

document.addEventListener("keydown", (event) => {
  const node = event.target.closest?.("[data-node]");
  if (!node || event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(KEYS, event.key)) return;
  event.preventDefault();
  KEYS[event.key](node);
});

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-zoom] button");
  if (button) zoom(graphOf(button), Number(button.dataset.by));
});

// Moved by the mouse as a map is; a finger scrolls it by itself. What was moved was not chosen.
let drag = null;
let isMoved = false;
document.addEventListener("pointerdown", (event) => {
  const graph = event.target.closest?.("[data-graph]");
  isMoved = false;
  drag = graph && event.pointerType === "mouse" && event.button === 0 ? { graph, x: event.clientX, left: graph.scrollLeft } : null;
});
document.addEventListener("pointermove", (event) => {
  if (!drag) return;
  const way = event.clientX - drag.x;
  isMoved ||= Math.abs(way) > 5;
  if (isMoved) drag.graph.scrollLeft = drag.left - way;
});
document.addEventListener("pointerup", () => { drag = null; });
document.addEventListener("click", (event) => {
  if (isMoved && event.target.closest?.("[data-graph]")) event.preventDefault();
  isMoved = false;
}, { capture: true });
document.addEventListener("dragstart", (event) => { if (event.target.closest?.("[data-graph]")) event.preventDefault(); });

document.addEventListener("driftline:part", prepare);
prepare();
