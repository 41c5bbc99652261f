/**
 * Delivers a queue: window by window, call by call, until each was taken or refused.
 *
 * 1. What fails is tried again after a pause that doubles, with jitter, and is never shorter than `Retry-After`.
 * 2. What is refused (4xx) is set aside with its reason and not tried again; so is what the server failed on MAX_FAULTS times (500).
 * 3. Where nothing would be taken, for a wrong token or a wrong address, nothing is lost: delivery rests, and begins again after SHUT_MS
 *    or with new settings.
 */
import { DONE, REFUSED, SHUT } from "./client.js";
import { callsOf } from "./calls.js";
import { Voice } from "./voice.js";

const SHUT_MS = 5 * 60 * 1000;
const MAX_FAULTS = 8;
const UNREACHABLE = "unreachable";

export class Sender {
  /** `client` posts, `aside` takes what was refused, `log` has info, warn and error; senders of one process share a `voice`. */
  constructor(queue, client, aside, settings, log, voice = new Voice(log)) {
    this.trouble = null;
    /** Called when records were delivered. */
    this.onDelivered = () => {};
    this._queue = queue;
    this._client = client;
    this._aside = aside;
    this._settings = settings;
    this._log = log;
    this._voice = voice;
    this._stop = new AbortController();
  }

  /** Deliver until stopped; with `isFinite` until the queue is empty. */
  async run(isFinite = false) {
    while (!this._stop.signal.aborted) {
      try {
        if (!(await this._next(isFinite))) {
          return;
        }
      } catch (error) {
        // A disk that fails may work again.
        this._isIll({ reason: `the queue: ${error.message}` });
        await this._pause(this._settings.retryMaxMs);
      }
    }
  }

  /** Stop at once; what was not answered is delivered another time. */
  stop() {
    this._stop.abort();
  }

  /** Deliver the next window, or wait for one; answers whether to go on. */
  async _next(isFinite) {
    const { records, end } = await this._queue.window();
    if (records.length === 0) {
      await this._queue.commit(end);
      if (isFinite) {
        return false;
      }
      await this._queue.waitForMore();
      await this._pause(this._settings.flushMs);
      return true;
    }
    const told = await this._deliver(callsOf(records));
    if (told) {
      await this._queue.commit(end, told);
      this.onDelivered();
    }
    return true;
  }

  async _deliver(calls) {
    const told = { delivered: 0, refused: 0 };
    for (const call of calls) {
      const refused = await this._settled(call);
      if (refused === null) {
        return null;
      }
      told.refused += refused;
      told.delivered += call.records - refused;
    }
    return told;
  }

  /** Send a call until it is settled; how many of its records were refused, or null when stopped before. */
  async _settled(call) {
    let faults = 0;
    for (let tries = 0; !this._stop.signal.aborted; tries += 1) {
      const result = await this._client.post(call.path, call.body, this._stop.signal);
      if (this._stop.signal.aborted) {
        return null;
      }
      faults += result.status === 500 ? 1 : 0;
      if (result.outcome === DONE) {
        this._isWell();
        return this._asideEvents(call, result.answer?.refused);
      }
      if (result.outcome === REFUSED || faults >= MAX_FAULTS) {
        this._isWell();
        return this._refused(call, result);
      }
      this._isIll(result);
      await this._pause(this._pauseAfter(tries, result));
    }
    return null;
  }

  _pauseAfter(tries, { outcome, pauseMs }) {
    const longest = Math.min(this._settings.retryMaxMs, this._settings.retryBaseMs * 2 ** Math.min(tries, 30));
    const drawn = longest * (0.5 + Math.random() / 2);
    return Math.max(drawn, pauseMs, outcome === SHUT ? Math.min(SHUT_MS, this._settings.retryMaxMs * 5) : 0);
  }

  async _refused(call, result) {
    if (call.kind === "end" && result.status === 404) {
      return 0; // A session of which nothing was taken has no end.
    }
    const bodies = call.kind === "events" ? call.events : [call.body];
    await this._aside(bodies.map((body) => asideOf(call, body, result)));
    this._log.warn(`driftline: ${bodies.length} of session ${call.session} refused (${result.status}): ${result.reason}; kept in refused.jsonl`);
    return call.records;
  }

  async _asideEvents(call, refused) {
    if (call.kind !== "events" || !Array.isArray(refused) || refused.length === 0) {
      return 0;
    }
    await this._aside(refused.map(({ index, error }) => asideOf(call, call.events[index], { status: 201, reason: error })));
    this._log.warn(`driftline: ${refused.length} events of session ${call.session} refused: ${refused[0].error}; kept in refused.jsonl`);
    return refused.length;
  }

  _isIll(result) {
    const words = result.outcome === SHUT ? `${result.status === 401 || result.status === 403 ? "the token is" : "the plugin is"} not let in (${result.status}): ${result.reason}` : `${result.reason}`;
    // A server that goes away does so with one error after another: reset, refused, timed out.
    this._voice.ill(this, result.status === 0 ? UNREACHABLE : words, words, this._queue.folder);
    this.trouble = words;
  }

  _isWell() {
    this._voice.well(this);
    this.trouble = null;
  }

  _pause(milliseconds) {
    const { signal } = this._stop;
    return new Promise((resolve) => {
      if (signal.aborted || milliseconds <= 0) {
        resolve();
        return;
      }
      const timer = setTimeout(done, milliseconds);
      timer.unref();
      signal.addEventListener("abort", done, { once: true });
      function done() {
        clearTimeout(timer);
        signal.removeEventListener("abort", done);
        resolve();
      }
    });
  }
}

function asideOf(call, body, { status, code, reason }) {
  return { at: new Date().toISOString(), kind: call.kind, session: call.session, status, ...(code && { code }), reason, body };
}
