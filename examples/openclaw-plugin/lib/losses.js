/** What a full queue dropped: told once when it begins, once when it is over, and to each session that lost something. */
import { randomBytes } from "node:crypto";

import { SOURCE } from "./ids.js";
import { LOSS } from "./lines.js";

const MAX_NOTES = 100;
const MAX_SESSIONS = 10_000;

export class Losses {
  /** `log` has info and warn, `emit` takes a record of the queue, `maxBytes` is the size of the queue. */
  constructor(log, emit, maxBytes) {
    this._log = log;
    this._emit = emit;
    this._maxBytes = maxBytes;
    this._begin();
  }

  /** Note that records were dropped: a map of sessions, each with how many of which sort. */
  add(lost) {
    if (this._records === 0) {
      const size = `${Math.round(this._maxBytes / 1024 / 1024)} MiB`;
      this._log.warn(
        `driftline: the queue was full (${size}): its oldest records are dropped until the server takes records again. ` +
          `Each session that loses some gets an event ${LOSS}; queueMaxMiB sets the size`,
      );
    }
    for (const [session, { exchange, event, end }] of lost) {
      this._records += exchange + event + end;
      if (this._sessions.size < MAX_SESSIONS) {
        this._sessions.add(session);
      }
    }
    const timestamp = new Date().toISOString();
    [...lost].slice(0, MAX_NOTES).forEach(([session, counts]) => this._emit(noteOf(session, counts, timestamp)));
  }

  /** Tell how much was lost, once the queue has room again. */
  settle(bytes) {
    if (this._records > 0 && bytes < this._maxBytes / 2) {
      this._log.info(`driftline: the queue has room again; ${this._records} records of ${this._sessions.size} sessions were dropped`);
      this._begin();
    }
  }

  _begin() {
    this._records = 0;
    this._sessions = new Set();
  }
}

function noteOf(session, { agent, exchange, event }, timestamp) {
  const message = `the plugin's queue was full: ${exchange} exchanges and ${event} events of this session were dropped`;
  const note = { event: LOSS, event_id: `dropped:${randomBytes(8).toString("hex")}`, source: SOURCE, timestamp, action: "queue_full" };
  return { k: "event", s: session, a: agent, b: { ...note, exchanges: exchange, events: event, message } };
}
