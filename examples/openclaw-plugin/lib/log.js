/** The log of the registration that came last. OpenClaw may close the one before, and a log that throws must stop nothing. */
export class Log {
  constructor(log) {
    this._log = log;
    for (const level of ["info", "warn", "error"]) {
      this[level] = (words) => {
        try {
          this._log[level](words);
        } catch {
          // There is nowhere to say it.
        }
      };
    }
  }

  /** Say what is said from now on to another log. */
  use(log) {
    this._log = log;
  }
}
