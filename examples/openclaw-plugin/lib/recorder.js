/**
 * What OpenClaw's hooks tell, as records for the queue. Every function returns at once and keeps no reference to what it was given.
 *
 * 1. Where the transcript tells of messages with their entries' ids, exchanges and events are made of these, as an import makes them.
 *    The exchange is written when its run ends; where it failed, when no other attempt follows within RETRY_MS.
 * 2. Of results of tools, compactions and changes of the model the transcript does not tell: they come from hooks, and say so
 *    (`told_by`). What a hook tells first, the transcript does not tell again, and the other way round.
 * 3. Without a transcript, exchanges and events come from hooks alone, under ids of the run: the exchange when both `agent_end` and
 *    `llm_output` have come, in whichever order, or `llm_output` has not within SETTLE_MS, or `agent_end` not within END_MS.
 */
import { randomBytes } from "node:crypto";

import { exchangeBody } from "./bodies.js";
import { waitOf, writtenEnd } from "./ends.js";
import { completed, endOf, exchangeOf, exchangeOfOutput, outputOf, timeOf } from "./exchanges.js";
import { sessionOfFile } from "./ids.js";
import { HOOK, RETRY, assistantEvents, callEvent, callsIn, lastTurn, named, number, outcomeEvents, present, resultEvents } from "./messages.js";
import { withheld } from "./privacy.js";
import { Session, keyOf } from "./session.js";
import { cut, isObject } from "./texts.js";
import { Turn } from "./turn.js";
import { insideOf } from "./wrapped.js";

/** Who told of a failure: the transcript. */
const ENTRY = "entry";
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

  /** Go on with other settings and another queue, and with all that is known of sessions. */
  handTo(settings, emit) {
    this.settings = settings;
    this._emit = emit;
    return this;
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
    this._answerIsOver(session);
    if (!PAUSES.has(event.reason)) {
      this._emit({ k: "end", s: session.id });
    }
  }

  beforeToolCall(event, context) {
    const session = this._session(event, context);
    if (!session || session.isInner(event.toolCallId)) {
      return;
    }
    const run = session.run(runOf(event, context));
    noteWrapped(session, event.toolName, event.toolCallId, event.params);
    if (session.isNewsToHook("call", event.toolCallId)) {
      const call = callEvent(event.toolName, event.toolCallId, event.params);
      this._tell(session, [call], { run, label: `${run.label}:call:${event.toolCallId ?? "?"}` });
    }
  }

  afterToolCall(event, context) {
    const session = this._session(event, context);
    if (!session || session.isInner(event.toolCallId) || !session.isNewsToHook("result", event.toolCallId)) {
      return;
    }
    noteWrapped(session, event.toolName, event.toolCallId, event.params);
    const run = session.run(runOf(event, context));
    const failed = typeof event.error === "string" && event.error !== "";
    const isError = failed || event.result?.isError === true;
    const result = event.result ?? (failed ? event.error : undefined);
    const { toolName: tool, toolCallId: callId, durationMs } = event;
    const events = outcomeEvents({ tool, callId, isError, durationMs, inner: session.insideOf(callId) }, result);
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

  /** A message was written to the transcript as the entry `messageId`. OpenClaw tells this of users' and assistants' messages. */
  transcribed(update) {
    const { message, messageId: entry } = update ?? {};
    if (!isObject(message) || typeof entry !== "string" || !entry) {
      return;
    }
    const session = this._sessionOfUpdate(update);
    if (!session || !session.first(`entry ${entry}`)) {
      return;
    }
    session.place(message, entry);
    if (message.role === "user") {
      this._answerIsOver(session);
      session.turn = new Turn(session.id, entry, message);
      session.ask(message);
      return;
    }
    if (message.role === "assistant") {
      session.turn?.add(message, entry);
    }
    this._tellMessage(session, message, { entry });
    for (const run of [...session.runs.values()].filter(({ ended }) => ended)) {
      this._maybeComplete(session, run);
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
    if (turn && !session.turn) {
      session.ask(turn.user);
    }
    run.ended = isLate ? { isTold: true } : (writtenEnd(session, turn) ?? endOf(session, run, turn, this._now()));
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
    const wait = waitOf(session, run);
    if (wait === 0) {
      this._complete(session, run);
      return;
    }
    run.timer = setTimeout(() => this._complete(session, run), wait);
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
    const turn = run.ended ? run.ended.turn : session.turn;
    if (turn) {
      this._write(session, turn.take(this._now(), run.ended?.isOver));
      return;
    }
    const exchange = run.ended?.exchange ?? exchangeOfOutput(session, run);
    this._write(session, exchange && completed(exchange, run.output));
  }

  /** Write what answers the user message of the transcript, because another one follows or the session ends. */
  _answerIsOver(session) {
    for (const run of [...session.runs.values()]) {
      if (run.ended) {
        this._complete(session, run);
      }
    }
    this._write(session, session.turn?.take(this._now(), false));
  }

  _write(session, exchange) {
    if (exchange) {
      const answer = this.settings.sendThinking ? exchange.answer : { ...exchange.answer, thinking: [] };
      this._emit({ k: "exchange", s: session.id, b: exchangeBody(session.id, session.agent, { ...exchange, answer }) });
    }
  }

  /** The events of a message that is no user's, once. */
  _tellMessage(session, message, { entry = session.entryOf(message), run, label }) {
    const isFailure = message.role === "assistant" && message.stopReason === "error";
    if (!session.first(keyOf(message))) {
      session.failedBy = isFailure && entry ? ENTRY : session.failedBy;
      return;
    }
    const place = { run, entry, label, at: message.timestamp };
    if (message.role === "assistant") {
      callsIn(message).forEach(({ name, id, arguments: given }) => noteWrapped(session, name, id, given));
      this._tellAnswer(session, message, place);
      session.failedBy = isFailure ? (entry ? ENTRY : HOOK) : null;
    } else if (message.role === "toolResult" && session.isNewsToMessage("result", message.toolCallId)) {
      this._tell(session, resultEvents(message, session.insideOf(message.toolCallId)), place);
    }
  }

  /** The events of an assistant's message, numbered as the import numbers them. */
  _tellAnswer(session, message, place) {
    const { failedBy } = session;
    const isUnwritten = failedBy === HOOK && place.entry;
    if (isUnwritten) {
      // 2026.9 writes no failed attempts that it mends itself: to the transcript, this is a first one.
      this._tell(session, [{ ...RETRY }], { ...place, entry: undefined, label: `${place.entry}:retry` });
    }
    const events = assistantEvents(message, failedBy !== null && !isUnwritten);
    const told = place.entry ? events : events.filter(({ usage }) => usage?.total !== 0);
    this._tell(session, told, place, ({ event, tool_call_id: id }) => event !== "tool_call" || session.isNewsToMessage("call", id));
  }

  /** Write events; those that are no news count for the ids of the others, and are left out. */
  _tell(session, events, { run, entry, label, at }, isNews = () => true) {
    const timestamp = timeOf(at, this._now());
    const exchangeId = exchangeOf(session, run);
    for (const event of session.identified(events, entry, label).filter(isNews)) {
      session.isFailureTold ||= event.event === "error_event";
      const kept = this.settings.sendToolData ? event : withheld(event);
      this._emit({ k: "event", s: session.id, a: session.agent, b: { ...kept, timestamp, ...(exchangeId && { exchange_id: exchangeId }) } });
    }
  }

  /** The session of an update; one that names none by its id or its file is nobody's. */
  _sessionOfUpdate(update) {
    const { sessionKey, sessionId, agentId, sessionFile } = { ...update.target, ...update };
    const id = sessionId ?? sessionOfFile(sessionFile) ?? this._idOfKey.get(sessionKey);
    return this._session({ sessionKey: id ? sessionKey : undefined, sessionId: id, agentId }, {});
  }

  _session(event, context) {
    const key = context?.sessionKey ?? event?.sessionKey;
    const id = context?.sessionId ?? event?.sessionId ?? this._idOfKey.get(key) ?? key;
    // The key names the agent whose folder the transcript lies in; what else is given was wrong in some versions.
    const agent = named(/^agent:([^:]+):/.exec(key ?? "")?.[1] ?? context?.agentId ?? event?.agentId);
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

function noteWrapped(session, tool, callId, given) {
  const inner = insideOf(tool, given);
  if (inner) {
    session.wrap(callId, inner.tool);
  }
}

function runOf(event, context) {
  return named(event.runId ?? context?.runId) ?? UNNAMED;
}
