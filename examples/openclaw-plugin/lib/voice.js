/** What senders say of their troubles: one that several lanes have is said once, and that it is over when none has any. */
export class Voice {
  /** `log` has info and warn. */
  constructor(log) {
    this._log = log;
    this._troubles = new Map();
  }

  /** A sender cannot deliver, for a trouble of this kind; what it has to deliver waits in a folder. */
  ill(sender, kind, words, folder) {
    if (![...this._troubles.values()].includes(kind)) {
      this._log.warn(`driftline: cannot deliver, ${words}; what is recorded waits in ${folder}`);
    }
    this._troubles.set(sender, kind);
  }

  /** A sender delivers, or has nothing left to deliver. */
  well(sender) {
    if (this._troubles.delete(sender) && this._troubles.size === 0) {
      this._log.info("driftline: delivering again");
    }
  }
}
