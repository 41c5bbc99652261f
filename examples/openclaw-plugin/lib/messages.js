/**
 * Messages of an agent as an exchange and as runtime events, in the shapes of Driftline's import.
 *
 * The response is the text of the last message that does not ask for a tool; thinking is all thinking blocks; usage is the sum, in
 * which tokens read from and written to the prompt cache count as read. Zero usage beside content means that it is missing.
 */
import { blocksOf, cut, isObject, isTooDeep, jsonCopy, jsonText, textOf } from "./texts.js";
import { WRAPPER, innerDetails, insideOf } from "./wrapped.js";

const MAX_RESULT = 16 * 1024;
const MAX_ARGUMENTS = 64 * 1024;
const MAX_NAME = 256;
const MAX_TOKENS = 2 ** 53;
const MIRROR = "delivery-mirror";
/** What `told_by` says of events whose entry is not known: the server recognises them in a transcript by what they tell. */
export const HOOK = "hook";
/** The event of another attempt after a failure. */
export const RETRY = Object.freeze({ event: "retry_event", action: "retry" });
const MEMORY_TOOLS = new Set(["memory_search", "memory_get"]);
const NO_JSON = "[no JSON]";
const NO_HITS = new Set(["", "[]", "{}", "null", "no results", "no results.", "no matches", "no matches."]);

/** The last user message of a conversation and what came after it; null where nobody asked. */
export function lastTurn(messages) {
  for (let index = messages.length - 1; index >= 0; index -= 1) {
    if (messages[index]?.role === "user") {
      return { user: messages[index], after: messages.slice(index + 1).filter(isObject) };
    }
  }
  return null;
}

/** What no assistant message comes to. */
export const NOTHING = Object.freeze({ text: "", mirror: "", thinking: Object.freeze([]), model: undefined, stop: undefined, input: null, output: null });

/** What assistant messages come to with one more. */
export function foldedIn(fold, message) {
  const text = textOf(message.content);
  if (isMirror(message)) {
    return { ...fold, mirror: text, model: fold.model ?? MIRROR, stop: fold.stop ?? stopOf(message) };
  }
  const usage = usageOf(message);
  const stop = stopOf(message);
  return {
    text: stop === "toolUse" ? fold.text : text,
    mirror: fold.mirror,
    thinking: [...fold.thinking, ...thoughtsOf(message)],
    model: named(message.model) ?? fold.model,
    stop,
    input: usage ? (fold.input ?? 0) + usage.read : fold.input,
    output: usage ? (fold.output ?? 0) + usage.output : fold.output,
  };
}

/** The exchange's answer that messages come to: content, thinking, model, why it stopped, and usage. */
export function answerOf({ text, mirror, ...fold }) {
  return { ...fold, content: text.trim() ? text : mirror || text };
}

/** Whether a message only repeats what was delivered. */
export function isMirror(message) {
  return message.model === MIRROR;
}

/** The thinking blocks of a message that say something. */
export function thoughtsOf(message) {
  return blocksOf(message?.content)
    .map((block) => block.thinking)
    .filter((text) => typeof text === "string" && text);
}

/** The calls of tools that a message asks for. */
export function callsIn(message) {
  return blocksOf(message.content).filter((block) => block.type === "toolCall");
}

/** The events of an assistant message: its calls, its usage, its failure. */
export function assistantEvents(message, isRetry) {
  const events = isRetry ? [{ ...RETRY }] : [];
  events.push(...callsIn(message).map((block) => callEvent(block.name, block.id, block.arguments)));
  const model = present({ provider: named(message.provider), model: named(message.model) });
  const usage = usageOf(message);
  if (usage && !isMirror(message)) {
    events.push({ event: "token_usage", usage: usage.told, ...model });
  }
  const stop = stopOf(message);
  if (stop === "error" || stop === "aborted") {
    const words = typeof message.errorMessage === "string" ? cut(message.errorMessage, MAX_RESULT) : undefined;
    events.push(present({ event: "error_event", action: stop, message: words, ...model }));
  }
  return events;
}

/** The events of a tool's result as a transcript holds it; `inner` is the tool inside a wrapped call. */
export function resultEvents(message, inner) {
  return outcomeEvents({ tool: message.toolName, callId: message.toolCallId, isError: message.isError === true, inner }, message);
}

/** The events of what a tool came back with: `result` has `content` and `details`, or is anything else. */
export function outcomeEvents({ tool, callId, isError, durationMs, inner }, result) {
  const isWrapped = tool === WRAPPER && Boolean(inner);
  const given = isObject(result?.details) ? result.details : {};
  const details = isWrapped ? innerDetails(given) : given;
  const text = isObject(result) && "content" in result ? textOf(result.content) : typeof result === "string" ? result : plain(result);
  const output = present({
    event: "tool_output",
    tool: named(isWrapped ? inner : tool),
    tool_call_id: named(callId),
    via: isWrapped ? WRAPPER : undefined,
    is_error: isError,
    exit_code: number(details.exitCode),
    duration_ms: number(details.durationMs) ?? number(durationMs),
    tool_status: named(details.status),
    result: cut(text, MAX_RESULT),
  });
  if (!MEMORY_TOOLS.has(output.tool)) {
    return [output];
  }
  const { tool: name, tool_call_id: id } = output;
  return [output, present({ event: "memory_event", action: recall(text, details, isError), tool: name, tool_call_id: id })];
}

/** The event of a call of a tool; of a wrapped one, that of the tool inside. */
export function callEvent(tool, callId, given) {
  const inner = insideOf(tool, given);
  const call = inner ? { tool: named(inner.tool), via: WRAPPER, arguments: argumentsOf(inner.arguments) } : { tool: named(tool), arguments: argumentsOf(given) };
  return present({ event: "tool_call", tool_call_id: named(callId), ...call });
}

/** Tokens of a message: read, written, and as an event tells them; null where they are missing. */
export function usageOf(message) {
  const given = message?.usage;
  if (!isObject(given) || !("input" in given)) {
    return null;
  }
  const [input, output, cacheRead, cacheWrite] = [given.input, given.output, given.cacheRead, given.cacheWrite].map(count);
  const read = input + cacheRead + cacheWrite;
  if (read + output === 0 && blocksOf(message.content).length > 0) {
    return null;
  }
  const told = present({
    total: read + output,
    input: number(given.input),
    output: number(given.output),
    cache_read: number(given.cacheRead),
    cache_write: number(given.cacheWrite),
    cost_usd: number(given.cost?.total),
  });
  return { read, output, told };
}

/** Why a message ended. */
export function stopOf(message) {
  if (typeof message.stopReason === "string") {
    return message.stopReason;
  }
  return blocksOf(message.content).some((block) => block.type === "toolCall") ? "toolUse" : undefined;
}

/** The fields that have a value. */
export function present(fields) {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined && value !== null));
}

/** A name within limits; undefined for what is none. */
export function named(value) {
  return typeof value === "string" && value ? cut(value, MAX_NAME) : undefined;
}

/** A number that JSON can hold. */
export function number(value) {
  return typeof value === "number" && Number.isFinite(value) ? value : undefined;
}

/** A count of tokens; what is no count is 0. */
export function count(value) {
  return number(value) > 0 ? Math.trunc(Math.min(value, MAX_TOKENS)) : 0;
}

function argumentsOf(given) {
  if (given === undefined || given === null) {
    return undefined;
  }
  const copy = jsonCopy(given);
  if (copy === undefined) {
    return NO_JSON;
  }
  const text = JSON.stringify(copy);
  // The order of keys is only worth its cost where the text is what is sent.
  return text.length <= MAX_ARGUMENTS && !isTooDeep(copy) ? copy : cut(jsonText(copy), MAX_ARGUMENTS);
}

function plain(result) {
  if (result === undefined || result === null) {
    return "";
  }
  const copy = jsonCopy(result);
  return copy === undefined ? NO_JSON : jsonText(copy);
}

function recall(text, details, isError) {
  if (isError) {
    return "recall_failed";
  }
  let found = "results" in details || "text" in details ? details : parsed(text);
  if (isObject(found)) {
    found = found.results ?? found.text ?? found;
  }
  if (Array.isArray(found)) {
    return found.length ? "hit" : "miss";
  }
  return NO_HITS.has((typeof found === "string" ? found : text).trim().toLowerCase()) ? "miss" : "hit";
}

function parsed(text) {
  if (text.length > 1024 * 1024 || !["{", "["].includes(text.trimStart()[0])) {
    return text;
  }
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
