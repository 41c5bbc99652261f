/** What is remembered of one session while it goes on: which messages were told, which calls are open, which runs are under way. */
import { SOURCE, eventIds, exchangeId } from "./ids.js";
import { HOOK } from "./messages.js";
import { outerIds, writtenId } from "./wrapped.js";

const MAX_TOLD = 4000;

export class Session {
  /** `id` is OpenClaw's id of the session. */
  constructor(id) {
    this.id = id;
    this.agent = undefined;
    this.model = undefined;
    this.tokensBefore = undefined;
    /** Runs under way, each with what is known of its exchange. */
    this.runs = new Map();
    /** The user message that is being answered with its answer, where the transcript tells of them. */
    this.turn = null;
    /** Whether the last message that answers it ended in an error, and who told of it; and whether any failure of it was told. */
    this.failedBy = null;
    this.isFailureTold = false;
    this._asked = null;
    this._told = new Set();
    this._ids = new Set();
    this._attempts = new Map();
    this._answered = new Map();
    this._entries = new Map();
    this._written = new Set();
    this._called = new Set();
    this._closed = new Map();
    this._wrapped = new Map();
  }

  /** Note which tool is inside a wrapped call. */
  wrap(callId, tool) {
    if (typeof callId === "string" && callId) {
      this._wrapped.set(writtenId(callId), tool);
      trim(this._wrapped);
    }
  }

  /** The tool inside the wrapped call of an id; undefined where it is none. */
  insideOf(callId) {
    return typeof callId === "string" && callId ? this._wrapped.get(writtenId(callId)) : undefined;
  }

  /** Whether a call is the inner one of a wrapped call, which is told as the outer one. */
  isInner(callId) {
    return outerIds(callId).some((id) => this._wrapped.has(id));
  }

  /** Whether a hook has to tell of a call or a result; not where a message told of it before. An id counts each time it is given. */
  isNewsToHook(what, id) {
    return !id || met(this._written, this._called, `${what} ${id}`);
  }

  /** Whether a message has to tell of a call or a result; not where a hook told of it before. */
  isNewsToMessage(what, id) {
    return !id || met(this._called, this._written, `${what} ${id}`);
  }

  /** Note which user message is being answered. */
  ask(user) {
    if (keyOf(user) !== this._asked) {
      this._asked = keyOf(user);
      this.failedBy = null;
      this.isFailureTold = false;
    }
  }

  /** Note that something was told; answers whether it had not been. */
  first(key) {
    return addBounded(this._told, key);
  }

  /** The id, made unique within the session. */
  unique(id) {
    let name = id;
    for (let copy = 2; !addBounded(this._ids, name); copy += 1) {
      name = `${id}#${copy}`;
    }
    return name;
  }

  /** Note which entry of the transcript a message is. */
  place(message, entry) {
    this._entries.set(keyOf(message), entry);
    trim(this._entries);
  }

  /** The entry of the transcript that a message is, where it is known. */
  entryOf(message) {
    return this._entries.get(keyOf(message));
  }

  /** The run of a name, begun where it is new. */
  run(name) {
    let run = this.runs.get(name);
    if (!run) {
      const attempt = (this._attempts.get(name) ?? 0) + 1;
      this._attempts.set(name, attempt);
      trim(this._attempts);
      run = { name, label: attempt === 1 ? name : `${name}-${attempt}`, since: Date.now(), ended: null, output: null, timer: null };
      this.runs.set(name, run);
    }
    return run;
  }

  /** Forget a run whose exchange was written; answers whether there was one. What has not come by then is `ended` or `output`. */
  close(run) {
    if (this.runs.get(run.name) !== run) {
      return false;
    }
    clearTimeout(run.timer);
    this.runs.delete(run.name);
    this._closed.set(run.name, run.ended ? (run.output ? null : "output") : "ended");
    trim(this._closed);
    return true;
  }

  /** Whether a part of a run comes after its exchange was written without it; told once. */
  isLate(name, part) {
    if (this.runs.has(name) || this._closed.get(name) !== part) {
      return false;
    }
    this._closed.delete(name);
    return true;
  }

  /** The id that the exchange of a run has where the transcript's entries are not known. */
  labelOf(run) {
    return exchangeId(this.id, `run-${run.label}`);
  }

  /** How many answers to a user message were told before, of which there are `total` now: null where that was all, undefined for none. */
  answered(user, total) {
    const key = keyOf(user);
    const before = this._answered.get(key);
    if (before !== undefined && total <= before) {
      return null;
    }
    this._answered.set(key, total);
    trim(this._answered);
    return before;
  }

  /** Events with ids of their entry, or of `label` where it is not known. */
  identified(events, entry, label) {
    const ids = entry ? eventIds(entry, events.length) : eventIds(label, events.length).map((id) => this.unique(id));
    const origin = entry ? { entry_id: entry } : { told_by: HOOK };
    return events.map((event, index) => ({ ...event, event_id: ids[index], source: SOURCE, ...origin }));
  }
}

/** What tells a message from others of its session. */
export function keyOf(message) {
  if (message.role === "toolResult") {
    return `result ${message.toolCallId} ${message.timestamp}`;
  }
  return `${message.role} ${message.timestamp} ${message.responseId ?? ""}`;
}

/** Whether nothing of this key waits on the other side; then it waits on this one. What has no id is told by whoever comes. */
function met(other, own, key) {
  if (other.delete(key)) {
    return false;
  }
  own.delete(key);
  addBounded(own, key);
  return true;
}

function addBounded(set, key) {
  if (set.has(key)) {
    return false;
  }
  set.add(key);
  trim(set);
  return true;
}

function trim(collection) {
  while (collection.size > MAX_TOLD) {
    collection.delete(collection.keys().next().value);
  }
}
