/**
 * What OpenClaw's hooks tell, as records for the queue. Every function returns at once and keeps no reference to what it was given.
 *
 * 1. A message that the transcript told of, with its entry's id, gives its events then, under the import's ids. Without that, calls and
 *    results come from the hooks around tools, and the other events from the messages at the end of the run, under ids of the run.
 * 2. The exchange of a run is written as soon as both `agent_end` and `llm_output` have come, in whichever order, else when
 *    `llm_output` has not come within SETTLE_MS, or `agent_end` within END_MS.
 */
import { randomBytes } from "node:crypto";

import { exchangeBody } from "./bodies.js";
import { completed, endOf, exchangeOf, exchangeOfOutput, outputOf, timeOf } from "./exchanges.js";
import { assistantEvents, callEvent, lastTurn, named, number, outcomeEvents, present, resultEvents } from "./messages.js";
import { withheld } from "./privacy.js";
import { Session, keyOf } from "./session.js";
import { cut, isObject } from "./texts.js";

export const SETTLE_MS = 1500;
const END_MS = 60_000;
const MAX_RUN_MS = 6 * 60 * 60 * 1000;
/** Runs without an id of their own: named anew in every process. */
const UNNAMED = `unnamed-${randomBytes(6).toString("hex")}`;
const MAX_SESSIONS = 500;
/** Ends of a session after which it goes on under the same id. */
const PAUSES = new Set(["shutdown", "restart"]);

export class Recorder {
  /** `settings` as of config.js; `emit` takes a record; `now` tells milliseconds since 1970. */
  constructor(settings, emit, now = Date.now) {
    this.settings = settings;
    this.unattributed = 0;
    this._emit = emit;
    this._now = now;
    this._sessions = new Map();
    this._idOfKey = new Map();
  }

  /** Ids of the sessions in which a run is under way. */
  busy() {
    const since = Date.now() - MAX_RUN_MS;
    const isBusy = (session) => [...session.runs.values()].some((run) => !run.ended && run.since > since);
    return [...this._sessions.values()].filter(isBusy).map((session) => session.id);
  }

  /** Write the exchanges that still wait for a second hook. */
  settle() {
    for (const session of this._sessions.values()) {
      for (const run of [...session.runs.values()]) {
        if (run.ended || run.output) {
          this._complete(session, run);
        }
      }
    }
  }

  sessionStart(event, context) {
    const session = this._session(event, context);
    return session ? session.id : null;
  }

  sessionEnd(event, context) {
    const session = this._session(event, context);
    if (!session) {
      return;
    }
    for (const run of [...session.runs.values()]) {
      this._complete(session, run);
    }
    if (!PAUSES.has(event.reason)) {
      this._emit({ k: "end", s: session.id });
    }
  }

  beforeToolCall(event, context) {
    const session = this._session(event, context);
    if (!session) {
      return;
    }
    const run = session.run(runOf(event, context));
    if (session.isTranscribed(event.toolCallId)) {
      return;
    }
    session.first(`call ${run.label} ${event.toolCallId}`);
    const call = callEvent(event.toolName, event.toolCallId, event.params);
    this._tell(session, [call], { run, label: `${run.label}:call:${event.toolCallId ?? "?"}` });
  }

  afterToolCall(event, context) {
    const session = this._session(event, context);
    if (!session || session.isTranscribed(event.toolCallId)) {
      return;
    }
    const run = session.run(runOf(event, context));
    session.first(`result ${run.label} ${event.toolCallId}`);
    const failed = typeof event.error === "string" && event.error !== "";
    const isError = failed || event.result?.isError === true;
    const result = event.result ?? (failed ? event.error : undefined);
    const events = outcomeEvents(event.toolName, event.toolCallId, result, isError, event.durationMs);
    this._tell(session, events, { run, label: `${run.label}:result:${event.toolCallId ?? "?"}` });
  }

  beforeCompaction(event, context) {
    const session = this._session(event, context);
    if (session) {
      session.tokensBefore = number(event.tokenCount);
    }
  }

  afterCompaction(event, context) {
    const session = this._session(event, context);
    if (!session) {
      return;
    }
    const compaction = present({
      event: "context_event",
      action: "compaction",
      tokens_before: session.tokensBefore,
      tokens_after: number(event.tokenCount),
      messages_compacted: event.compactedCount >= 0 ? number(event.compactedCount) : undefined,
    });
    session.tokensBefore = undefined;
    this._tell(session, [compaction], { label: `compaction-${this._now()}` });
  }

  /** A message was written to the transcript as the entry `messageId`. */
  transcribed(update) {
    const { message, messageId: entry } = update ?? {};
    if (!isObject(message) || typeof entry !== "string" || !entry) {
      return;
    }
    const session = this._session({ ...update.target, ...update }, {});
    if (!session) {
      return;
    }
    session.place(message, entry);
    if (message.role === "user") {
      session.turn = entry;
      session.ask(message);
    } else {
      this._tellMessage(session, message, { entry });
    }
  }

  agentEnd(event, context) {
    const session = this._session(event, context);
    if (!session) {
      return;
    }
    const isLate = session.isLate(runOf(event, context), "ended");
    const run = session.run(runOf(event, context));
    const turn = lastTurn(Array.isArray(event.messages) ? event.messages : []);
    if (turn) {
      session.ask(turn.user);
    }
    run.ended = isLate ? { isTold: true } : endOf(session, run, turn, this._now());
    for (const [index, message] of (turn?.after ?? []).entries()) {
      this._tellMessage(session, message, { run, label: `${run.label}:message:${index}` });
    }
    if (event.success === false && !session.isFailureTold) {
      const words = typeof event.error === "string" ? cut(event.error, 16 * 1024) : undefined;
      const failure = present({ event: "error_event", action: "error", message: words });
      this._tell(session, [failure], { run, label: `${run.label}:failed` });
    }
    this._maybeComplete(session, run);
  }

  llmOutput(event, context) {
    const session = this._session(event, context);
    if (!session || session.isLate(runOf(event, context), "output")) {
      return;
    }
    const run = session.run(runOf(event, context));
    run.output = outputOf(event, run.output);
    this._noteModel(session, run, event);
    this._maybeComplete(session, run);
  }

  _noteModel(session, run, event) {
    const model = present({ provider: named(event.provider), model: named(event.model) });
    const before = session.model;
    session.model = `${model.provider}/${model.model}`;
    if (before && before !== session.model) {
      this._tell(session, [{ event: "state_transition", action: "model_change", ...model }], { run, label: `${run.label}:model` });
    }
  }

  _maybeComplete(session, run) {
    clearTimeout(run.timer);
    if (run.ended && (run.output || run.ended.isTold)) {
      this._complete(session, run);
      return;
    }
    run.timer = setTimeout(() => this._complete(session, run), run.ended ? SETTLE_MS : END_MS);
    run.timer.unref?.();
  }

  /** Write a run's exchange, of what has come. */
  _complete(session, run) {
    // What ended before it comes before it.
    for (const other of [...session.runs.values()]) {
      if (other === run) {
        break;
      }
      if (other.ended) {
        this._complete(session, other);
      }
    }
    if (!session.close(run) || run.ended?.isTold) {
      return;
    }
    const exchange = run.ended?.exchange ?? exchangeOfOutput(session, run);
    if (!exchange) {
      return;
    }
    const whole = completed(exchange, run.output, this.settings);
    this._emit({ k: "exchange", s: session.id, b: exchangeBody(session.id, session.agent, whole) });
  }

  /** The events of a message that is no user's, once. */
  _tellMessage(session, message, { entry = session.entryOf(message), run, label }) {
    if (!session.first(keyOf(message))) {
      return;
    }
    const at = message.timestamp;
    if (message.role === "assistant") {
      let events = assistantEvents(message, session.hasFailed);
      session.hasFailed = message.stopReason === "error";
      if (entry) {
        callsOf(message).forEach((call) => session.transcribe(call));
      } else {
        events = events.filter(({ event, tool_call_id: call }) => event !== "tool_call" || session.first(`call ${run.label} ${call}`));
      }
      this._tell(session, events, { run, entry, label, at });
    } else if (message.role === "toolResult") {
      if (entry || session.first(`result ${run.label} ${message.toolCallId}`)) {
        this._tell(session, resultEvents(message), { run, entry, label, at });
      }
    }
  }

  _tell(session, events, { run, entry, label, at }) {
    const timestamp = timeOf(at, this._now());
    const exchangeId = exchangeOf(session, run);
    for (const event of session.identified(events, entry, label)) {
      session.isFailureTold ||= event.event === "error_event";
      const kept = this.settings.sendToolData ? event : withheld(event);
      this._emit({ k: "event", s: session.id, a: session.agent, b: { ...kept, timestamp, ...(exchangeId && { exchange_id: exchangeId }) } });
    }
  }

  _session(event, context) {
    const key = context?.sessionKey ?? event?.sessionKey;
    const id = context?.sessionId ?? event?.sessionId ?? this._idOfKey.get(key) ?? key;
    const agent = named(context?.agentId ?? event?.agentId ?? /^agent:([^:]+):/.exec(key ?? "")?.[1]);
    if (typeof id !== "string" || !id.trim() || id.length > 256 || /\p{Cc}/u.test(id)) {
      this.unattributed += 1;
      return null;
    }
    if (this.settings.agents && !this.settings.agents.has(agent)) {
      return null;
    }
    const session = this._sessions.get(id) ?? new Session(id);
    this._sessions.delete(id);
    this._sessions.set(id, session);
    session.agent = agent ?? session.agent;
    if (key) {
      this._idOfKey.set(key, id);
    }
    for (const map of [this._sessions, this._idOfKey]) {
      while (map.size > MAX_SESSIONS) {
        map.delete(map.keys().next().value);
      }
    }
    return session;
  }
}

function runOf(event, context) {
  return named(event.runId ?? context?.runId) ?? UNNAMED;
}

function callsOf(message) {
  const blocks = Array.isArray(message.content) ? message.content : [];
  return blocks.filter((block) => block?.type === "toolCall" && block.id).map((block) => block.id);
}
