import assert from "node:assert/strict";
import test from "node:test";

import { MAX_EXCHANGE } from "../lib/bodies.js";
import { Recorder } from "../lib/recorder.js";
import { SETTINGS } from "./support.js";

const CONTEXT = { agentId: "main", sessionId: "s", sessionKey: "agent:main:s", runId: "r" };
const AT = Date.UTC(2026, 10, 3, 9);
const user = (text, at = AT) => ({ role: "user", content: text, timestamp: at });
const said = (text, at = AT + 1, more = {}) => ({
  role: "assistant", content: [{ type: "text", text }], stopReason: "stop", model: "m", provider: "p", timestamp: at, ...more,
});

/** A recorder, its records, and a shorter way to call it. */
function recording(settings = {}) {
  const records = [];
  const recorder = new Recorder({ ...SETTINGS, ...settings }, (record) => records.push(structuredClone(record)));
  const exchanges = () => records.filter(({ k }) => k === "exchange").map(({ b }) => b.exchange);
  const events = () => records.filter(({ k }) => k === "event").map(({ b }) => b);
  return { recorder, records, exchanges, events };
}

test("an exchange is written once both hooks have come, in either order", () => {
  for (const isEndFirst of [true, false]) {
    const { recorder, exchanges } = recording();
    const end = () => recorder.agentEnd({ messages: [user("Hi"), said("Hello")], success: true }, CONTEXT);
    const output = () => recorder.llmOutput({ prompt: "Hi", assistantTexts: ["Hello"], model: "m", usage: { input: 3, cacheRead: 2, output: 1 } }, CONTEXT);
    (isEndFirst ? [end, output] : [output, end]).forEach((call) => call());

    assert.deepEqual(exchanges().map(({ id, agent_response: answer }) => [id, answer.content, answer.usage]), [
      ["s:run-r", "Hello", { input_tokens: 5, output_tokens: 1 }],
    ]);
  }
});

test("without agent_end an exchange is what llm_output tells", () => {
  const { recorder, exchanges } = recording();
  recorder.llmOutput({ prompt: "Hi", assistantTexts: ["Hello"], model: "m" }, CONTEXT);
  assert.deepEqual(exchanges(), []);
  recorder.settle();

  assert.equal(exchanges()[0].user_message.content, "Hi");
  recorder.agentEnd({ messages: [user("Hi"), said("Hello")], success: true }, CONTEXT);
  recorder.settle();
  assert.equal(exchanges().length, 1, "what comes late is not told again");
});

test("another attempt of a run is an exchange of its own, and what was told is not told again", () => {
  const { recorder, exchanges, events } = recording();
  const failed = said("", AT + 1, { content: [], stopReason: "error", errorMessage: "529" });
  recorder.agentEnd({ messages: [user("Hi"), failed], success: false, error: "529" }, CONTEXT);
  recorder.llmOutput({ assistantTexts: [] }, CONTEXT);
  recorder.agentEnd({ messages: [user("Hi"), failed, user("Hi", AT + 9), said("Hello", AT + 10)], success: true }, CONTEXT);
  recorder.llmOutput({ assistantTexts: ["Hello"] }, CONTEXT);
  recorder.agentEnd({ messages: [user("Hi", AT + 9), said("Hello", AT + 10)], success: true }, { ...CONTEXT, runId: "r2" });

  assert.deepEqual(exchanges().map(({ id }) => id), ["s:run-r", "s:run-r-2"]);
  assert.deepEqual(events().map(({ event, action }) => [event, action]), [["error_event", "error"]]);
});

test("a further answer to the same message is an exchange of its own, named as the import names it", () => {
  const { recorder, exchanges } = recording();
  const messages = [user("Hi"), said("Hello")];
  recorder.transcribed({ ...CONTEXT, message: messages[0], messageId: "u:1" });
  recorder.transcribed({ ...CONTEXT, message: messages[1], messageId: "a1" });
  recorder.agentEnd({ messages, success: true }, CONTEXT);
  const more = said("And more", AT + 5);
  recorder.transcribed({ ...CONTEXT, message: more, messageId: "a2" });
  recorder.agentEnd({ messages: [...messages, more], success: true }, { ...CONTEXT, runId: "r2" });
  recorder.settle();

  assert.deepEqual(exchanges().map(({ id }) => id), ["s:u%3A1", "s:u%3A1~a2"]);
  assert.equal(exchanges()[1].agent_response.content, "And more");
});

const calling = (id, at = AT + 1) => said("", at, { content: [{ type: "toolCall", id, name: "exec", arguments: {} }], stopReason: "toolUse" });
const update = (message, messageId) => ({ target: CONTEXT, message, messageId });
const hooked = { toolName: "exec", params: {}, toolCallId: "t1" };

test("calls come from the transcript and results from hooks, each once, whichever comes first", () => {
  for (const isHookFirst of [true, false]) {
    const { recorder, events } = recording();
    recorder.transcribed(update(user("Hi"), "u1"));
    const steps = [() => recorder.transcribed(update(calling("t1"), "a1")), () => recorder.beforeToolCall(hooked, CONTEXT)];
    (isHookFirst ? steps.reverse() : steps).forEach((step) => step());
    recorder.afterToolCall({ ...hooked, result: { content: [{ type: "text", text: "ok" }] } }, CONTEXT);
    const result = { role: "toolResult", toolCallId: "t1", toolName: "exec", content: [{ type: "text", text: "ok" }], timestamp: AT + 2 };
    recorder.agentEnd({ messages: [user("Hi"), calling("t1"), result, said("Done", AT + 3)], success: true }, CONTEXT);

    const tools = events().map(({ event, entry_id: entry, told_by: by, exchange_id: id }) => [event, entry ?? by, id]);
    assert.deepEqual(tools, [["tool_call", isHookFirst ? "hook" : "a1", "s:u1"], ["tool_output", "hook", "s:u1"]]);
    recorder.settle();
  }
});

test("an exchange says what the transcript says, whatever the run was given besides", () => {
  const { recorder, exchanges } = recording({ sendThinking: false });
  recorder.transcribed(update(user("Hi", AT - 5000), "u1"));
  const answer = said("Hello", AT + 1, { content: [{ type: "thinking", thinking: "Hm." }, { type: "text", text: "Hello" }] });
  recorder.transcribed(update(answer, "a1"));
  recorder.transcribed(update(answer, "a1"));
  recorder.agentEnd({ messages: [user("<context>...</context> Hi"), answer], success: true }, CONTEXT);
  recorder.llmOutput({ assistantTexts: ["Hello, there"], model: "other" }, CONTEXT);

  const [{ id, timestamp, user_message: asked, agent_response: told }] = exchanges();
  assert.deepEqual([id, timestamp, asked.content], ["s:u1", "2026-11-03T08:59:55+00:00", "Hi"]);
  assert.deepEqual(told, { content: "Hello", model: "m", stop_reason: "stop" });
});

test("attempts after a failure are part of the answer, and copies of what was delivered are none", () => {
  const { recorder, exchanges } = recording();
  recorder.transcribed(update(user("Hi"), "u1"));
  const failed = said("", AT + 1, { content: [], stopReason: "error", errorMessage: "529" });
  recorder.transcribed(update(failed, "a1"));
  recorder.agentEnd({ messages: [user("Hi"), failed], success: false }, CONTEXT);
  assert.deepEqual(exchanges(), []);
  const mended = said("Hello", AT + 5);
  recorder.transcribed(update(mended, "a2"));
  recorder.agentEnd({ messages: [user("Hi"), failed, mended], success: true }, CONTEXT);
  recorder.transcribed(update(said("Hello", AT + 9, { model: "delivery-mirror" }), "d1"));
  recorder.transcribed(update(user("Bye", AT + 20), "u2"));
  recorder.agentEnd({ messages: [user("Bye", AT + 20)], success: false }, { ...CONTEXT, runId: "r2" });
  recorder.sessionEnd({ reason: "new" }, CONTEXT);

  assert.deepEqual(exchanges().map(({ id, agent_response: { content } }) => [id, content]), [["s:u1", "Hello"], ["s:u2", ""]]);
});

test("an answer that is cut off by the next message, or by the end of the session, is told", () => {
  const { recorder, exchanges } = recording();
  recorder.transcribed(update(user("Hi"), "u1"));
  recorder.transcribed(update(said("Half"), "a1"));
  recorder.transcribed(update(user("Stop", AT + 9), "u2"));
  recorder.transcribed(update(said("Stopped", AT + 10), "a2"));
  recorder.sessionEnd({ reason: "daily" }, CONTEXT);

  assert.deepEqual(exchanges().map(({ id, agent_response: { content } }) => [id, content]), [["s:u1", "Half"], ["s:u2", "Stopped"]]);
});

test("an update is of the session whose file or id it names, and of none that is only guessed", () => {
  const { recorder, records } = recording();
  const of = (fields, number) => recorder.transcribed({ sessionKey: "agent:ops:main", messageId: `a${number}`, message: calling("t", AT + number), ...fields });
  const id = "3f0b6a52-6a7e-4c1e-9a51-0a5d0b2c9e11";
  of({}, 1);
  assert.equal(recorder.unattributed, 1);
  of({ sessionFile: `/state/agents/ops/sessions/2026-11-03_${id}.jsonl` }, 2);
  of({ sessionFile: "/state/agents/ops/sessions/named-topic-7.jsonl" }, 3);
  of({}, 4);

  assert.deepEqual(records.map(({ s, a }) => [s, a]), [[id, "ops"], ["named", "ops"], ["named", "ops"]]);
});

test("calls that repeat an id within a run stay apart", () => {
  const { recorder, events } = recording();
  recorder.beforeToolCall({ toolName: "exec", params: { n: 1 }, toolCallId: "call_0" }, CONTEXT);
  recorder.beforeToolCall({ toolName: "exec", params: { n: 2 }, toolCallId: "call_0" }, CONTEXT);

  assert.equal(new Set(events().map(({ event_id: id }) => id)).size, 2);
});

test("a failed call is an error, with the words there are", () => {
  const { recorder, events } = recording();
  recorder.afterToolCall({ toolName: "exec", params: {}, toolCallId: "t", error: "ENOENT", durationMs: 3 }, CONTEXT);
  recorder.afterToolCall({ toolName: "memory_search", params: {}, toolCallId: "m", result: { results: [] } }, CONTEXT);

  const [output, search, memory] = events();
  assert.deepEqual([output.is_error, output.result, output.duration_ms], [true, "ENOENT", 3]);
  assert.deepEqual([search.event, memory.event, memory.action], ["tool_output", "memory_event", "miss"]);
});

test("a change of the model is told, its first mention is not", () => {
  const { recorder, events } = recording();
  for (const model of ["a", "a", "b"]) {
    recorder.llmOutput({ provider: "p", model, assistantTexts: ["x"] }, CONTEXT);
  }
  assert.deepEqual(events().map(({ event, action, model }) => [event, action, model]), [["state_transition", "model_change", "b"]]);
});

test("what the agent changes afterwards does not change what was recorded", () => {
  const { recorder, records } = recording();
  const params = { command: "ls" };
  const kept = [];
  recorder._emit = (record) => kept.push(record);
  recorder.beforeToolCall({ toolName: "exec", params, toolCallId: "t" }, CONTEXT);
  params.command = "rm";

  assert.equal(records.length, 0);
  assert.equal(kept[0].b.arguments.command, "ls");
});

test("bodies stay within the server's limits, and cuts are shown", () => {
  const { recorder, exchanges, events } = recording();
  const long = "\u0001ü😀".repeat(200_000);
  recorder.agentEnd({ messages: [user(long), said(long)], success: true }, CONTEXT);
  recorder.settle();
  let deep = {};
  for (let level = 0; level < 100; level += 1) {
    deep = { deep };
  }
  recorder.beforeToolCall({ toolName: "x".repeat(999), params: { text: long }, toolCallId: "t" }, CONTEXT);
  recorder.beforeToolCall({ toolName: "deep", params: deep, toolCallId: "d" }, CONTEXT);

  assert.ok(Buffer.byteLength(JSON.stringify({ exchange: exchanges()[0] })) <= MAX_EXCHANGE);
  assert.match(exchanges()[0].user_message.content, /\[cut: \d+ more characters\]$/);
  assert.match(events()[0].arguments, /\[cut: \d+ more characters\]$/);
  assert.match(events()[0].tool, /^x{256}\[cut: 743 more characters\]$/);
  assert.equal(typeof events()[1].arguments, "string");
});

test("agents that are not to be sent are not, and records without a session are counted", () => {
  const { recorder, records } = recording({ agents: new Set(["ops"]) });
  recorder.beforeToolCall({ toolName: "exec", params: {} }, CONTEXT);
  recorder.beforeToolCall({ toolName: "exec", params: {} }, {});

  assert.deepEqual(records, []);
  assert.equal(recorder.unattributed, 1);
});

test("a session ends when OpenClaw says so, and does not when the gateway only pauses", () => {
  const { recorder, records } = recording();
  recorder.sessionEnd({ sessionId: "s", reason: "restart" }, CONTEXT);
  assert.deepEqual(records, []);
  recorder.sessionEnd({ sessionId: "s", reason: "daily" }, CONTEXT);
  assert.deepEqual(records, [{ k: "end", s: "s" }]);
});

test("a session is busy from the first call of its run to the end", () => {
  const { recorder } = recording();
  recorder.beforeToolCall({ toolName: "exec", params: {}, toolCallId: "t" }, CONTEXT);
  assert.deepEqual(recorder.busy(), ["s"]);
  recorder.agentEnd({ messages: [user("Hi"), said("Hello")], success: true }, CONTEXT);
  assert.deepEqual(recorder.busy(), []);
  recorder.settle();
});

const wrapping = (id, given, at = AT + 1) => said("", at, { content: [{ type: "toolCall", id, name: "tool_call", arguments: given }], stopReason: "toolUse" });
const failed = { content: [{ type: "text", text: "{}" }], details: { tool: { name: "memory_search" }, result: { details: { results: [], exitCode: 3 } } } };

test("a wrapped call and its result are those of the tool inside, once", () => {
  for (const isHookFirst of [true, false]) {
    const { recorder, events } = recording();
    const given = { id: "openclaw:core:memory_search", args: { query: "q" } };
    const outer = { toolName: "tool_call", params: given, toolCallId: "t 1" };
    const inner = { toolName: "memory_search", params: { query: "q" }, toolCallId: "tool_search_code:t_1:memory_search:1" };
    const steps = [() => recorder.transcribed(update(wrapping("t 1", given), "a1")), () => recorder.beforeToolCall(outer, CONTEXT)];
    (isHookFirst ? steps.reverse() : steps).forEach((step) => step());
    recorder.beforeToolCall(inner, CONTEXT);
    recorder.afterToolCall({ ...inner, result: failed }, CONTEXT);
    recorder.afterToolCall({ ...outer, result: failed }, CONTEXT);

    const told = events().map(({ event, tool, via, action, exit_code: code, arguments: args }) => [event, tool, via, action ?? code ?? args]);
    assert.deepEqual(told, [
      ["tool_call", "memory_search", "tool_call", { query: "q" }],
      ["tool_output", "memory_search", "tool_call", 3],
      ["memory_event", "memory_search", undefined, "miss"],
    ]);
    assert.deepEqual([...new Set(events().map(({ tool_call_id: id }) => id))], ["t 1"]);
    recorder.settle();
  }
});

test("arguments beside the selector are taken, and what names no tool is told as it is", () => {
  const { recorder, events } = recording();
  for (const [toolCallId, params] of [["1", { name: "exec", command: "ls" }], ["2", { id: "mcp:", arguments: { a: 1 } }], ["3", { args: {} }], ["4", "exec"]]) {
    recorder.beforeToolCall({ toolName: "tool_call", params, toolCallId }, CONTEXT);
  }
  assert.deepEqual(events().map(({ tool, via, arguments: args }) => [tool, via, args]), [
    ["exec", "tool_call", { command: "ls" }],
    ["mcp:", "tool_call", { a: 1 }],
    ["tool_call", undefined, { args: {} }],
    ["tool_call", undefined, "exec"],
  ]);
});

test("tools that code calls are told by their hooks: no transcript has them", () => {
  const { recorder, events } = recording();
  recorder.beforeToolCall({ toolName: "tool_search_code", params: { code: "..." }, toolCallId: "t1" }, CONTEXT);
  recorder.beforeToolCall({ toolName: "exec", params: {}, toolCallId: "tool_search_code:t1:exec:1" }, CONTEXT);
  assert.deepEqual(events().map(({ tool }) => tool), ["tool_search_code", "exec"]);
});

test("a failed attempt that is written nowhere leaves the ids of what follows to the transcript", () => {
  const nothing = { content: [], stopReason: "error", errorMessage: "529", usage: { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 } };
  for (const isWritten of [false, true]) {
    const { recorder, events } = recording();
    recorder.transcribed(update(user("Hi"), "u1"));
    recorder.agentEnd({ messages: [user("Hi"), said("", AT + 1, nothing)], success: false }, CONTEXT);
    if (isWritten) {
      recorder.transcribed(update(said("", AT + 1, nothing), "e1"));
    }
    recorder.transcribed(update(said("Ho", AT + 2, { usage: { input: 1, output: 1 } }), "a1"));
    recorder.settle();

    const told = events().map(({ event, event_id: id, told_by: by }) => [event, by ?? id]);
    assert.deepEqual(told, [["error_event", "hook"], ["retry_event", isWritten ? "a1.0" : "hook"], ["token_usage", isWritten ? "a1.1" : "a1"]]);
  }
});

test("every event says that it comes from OpenClaw", () => {
  const { recorder, events } = recording();
  recorder.transcribed(update(calling("t1"), "a1"));
  recorder.afterToolCall({ ...hooked, result: "ok" }, CONTEXT);
  assert.deepEqual(events().map(({ source }) => source), ["openclaw", "openclaw"]);
});
