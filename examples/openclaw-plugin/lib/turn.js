/** A user message of the transcript with what answers it, as Driftline's import reads it: one exchange, or more where it goes on. */
import { timeOf } from "./exchanges.js";
import { exchangeId } from "./ids.js";
import { NOTHING, answerOf, foldedIn, isMirror } from "./messages.js";
import { textOf } from "./texts.js";

const FAILURES = new Set(["error", "aborted"]);

export class Turn {
  /** `session` is the session's id, `entry` the id of the entry that the user message is. */
  constructor(session, entry, user) {
    this.entry = entry;
    this._session = session;
    this._asked = textOf(user.content);
    this._at = user.timestamp;
    this._isTold = false;
    this._begin();
  }

  /** Take in a message that answers it. */
  add(message, entry) {
    this._fold = foldedIn(this._fold, message);
    // A copy of what was delivered may come after the answer, and is none.
    if (!isMirror(message)) {
      this._first ??= { entry, at: message.timestamp };
    }
  }

  /** The id of the exchange that is under way. */
  get exchangeId() {
    return exchangeId(this._session, this.entry, ...(this._isTold && this._first ? [this._first.entry] : []));
  }

  /** Whether there is an answer that was not taken. */
  get hasAnswer() {
    return this._first !== null;
  }

  /** Whether the answer ended in a failure, which another attempt may mend. */
  get hasFailed() {
    return this.hasAnswer && FAILURES.has(this._fold.stop);
  }

  /** The exchange, once; null where nothing came since. Without any answer it is one only where `isOver` says that none comes. */
  take(now, isOver) {
    if (!this.hasAnswer && (this._isTold || !isOver)) {
      return null;
    }
    const at = timeOf(this._isTold ? this._first.at : this._at, now);
    const exchange = { id: this.exchangeId, at, asked: this._asked, answer: answerOf(this._fold) };
    this._isTold = true;
    this._begin();
    return exchange;
  }

  _begin() {
    this._fold = NOTHING;
    this._first = null;
  }
}
