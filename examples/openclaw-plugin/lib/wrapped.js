/**
 * Calls of tools through another tool. Since 2026.9 OpenClaw shows a model few tools and has it call the others through one,
 * `tool_call {id, args}`; such a call and its result are told as those of the tool inside, with `via` naming the wrapper, as the import
 * tells them.
 *
 * Hooks are called for both: the outer call under the model's id, and the inner one under `tool_search_code:<outer id>:<tool>:<n>`.
 */
import { isObject } from "./texts.js";

/** The tool through which the tools of the catalogue are called. */
export const WRAPPER = "tool_call";

const INNER = /^tool_search_code:(.+):\d+$/;
const SELECTORS = ["id", "name"];
const ARGUMENTS = ["args", "arguments"];

/** The tool inside a wrapped call, with its arguments; null for a call of any other kind. */
export function insideOf(tool, given) {
  if (tool !== WRAPPER || !isObject(given)) {
    return null;
  }
  const selector = SELECTORS.find((name) => typeof given[name] === "string" && given[name]);
  if (!selector) {
    return null;
  }
  // Small models put the arguments beside the selector, which OpenClaw takes.
  const beside = Object.entries(given).filter(([name]) => name !== selector && !ARGUMENTS.includes(name));
  const holder = ARGUMENTS.find((name) => isObject(given[name]));
  const named = given[selector];
  return { tool: named.slice(named.lastIndexOf(":") + 1) || named, arguments: holder ? given[holder] : Object.fromEntries(beside) };
}

/** The details of a wrapped tool's result; those of the wrapper where it has none. */
export function innerDetails(details) {
  return isObject(details.result?.details) ? details.result.details : details;
}

/** The ids that the outer call of an inner one may have, as OpenClaw writes them into the inner one's; none for any other call. */
export function outerIds(callId) {
  const [, rest] = (typeof callId === "string" && INNER.exec(callId)) || [];
  if (!rest) {
    return [];
  }
  // The name of a tool may hold a colon, and so may an id.
  return [...rest.matchAll(/:/g)].map(({ index }) => rest.slice(0, index));
}

/** An id as OpenClaw writes it into that of an inner call. */
export function writtenId(callId) {
  return callId.trim().replace(/[^A-Za-z0-9_.:-]+/g, "_").slice(0, 120) || "call";
}
