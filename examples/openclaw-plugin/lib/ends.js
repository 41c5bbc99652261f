/** The end of a run, and how long its exchange waits after it. */

const SETTLE_MS = 1500;
const END_MS = 60_000;
/** How long an answer that failed waits for another attempt, which OpenClaw makes within the same answer. */
const RETRY_MS = 30_000;

/** The end of a run of which the transcript tells; null where it does not. */
export function writtenEnd(session, turn) {
  if (!session.turn) {
    return null;
  }
  const answers = (turn?.after ?? []).filter(({ role }) => role === "assistant");
  return { turn: session.turn, isOver: answers.length === 0, last: answers.at(-1) ?? null };
}

/** Milliseconds until the exchange of a run is written: for a hook that has not come, a message, or another attempt; 0 for at once. */
export function waitOf(session, { ended, output }) {
  if (!ended) {
    return END_MS;
  }
  if (ended.turn) {
    const isWritten = !ended.last || session.entryOf(ended.last);
    return ended.turn.hasFailed ? RETRY_MS : isWritten ? 0 : SETTLE_MS;
  }
  return output || ended.isTold ? 0 : SETTLE_MS;
}
