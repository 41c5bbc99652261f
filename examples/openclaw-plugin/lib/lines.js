/** Files of lines, read from a place on. */
import { open } from "node:fs/promises";

/** The event that tells of a loss. */
export const LOSS = "records_dropped";

/**
 * The records of whole lines from `offset` on, of about `most` bytes, and the place after them.
 *
 * A torn line at the end of a file that nobody writes any more is passed over, and so is one that is no JSON.
 */
export async function readLines(path, { segment, offset, size, most, isWritten }) {
  const file = await open(path, "r");
  try {
    let wanted = Math.min(size - offset, most);
    for (;;) {
      const buffer = Buffer.alloc(wanted);
      const { bytesRead } = await file.read(buffer, 0, wanted, offset);
      const end = buffer.lastIndexOf(0x0a, bytesRead - 1) + 1;
      const isLast = wanted >= size - offset;
      if (end > 0 || isLast) {
        return { records: recordsIn(buffer.subarray(0, end)), end: { segment, offset: isLast && !isWritten ? size : offset + end } };
      }
      wanted = Math.min(size - offset, wanted * 2);
    }
  } finally {
    await file.close();
  }
}

/** How many records of each sort every session has among these, with its agent. */
export function lostOf(records) {
  const lost = new Map();
  for (const { k: kind, s: session, a: agent, b: body } of records) {
    const counts = lost.get(session) ?? { agent, exchange: 0, event: 0, end: 0 };
    if (body?.event === LOSS) {
      // A note of an earlier loss goes on in the note of this one.
      counts.exchange += body.exchanges;
      counts.event += body.events;
    } else {
      counts[kind] += 1;
    }
    lost.set(session, counts);
  }
  return lost;
}

function recordsIn(bytes) {
  const records = [];
  for (const line of bytes.toString("utf8").split("\n")) {
    try {
      if (line) {
        records.push(JSON.parse(line));
      }
    } catch {
      // Half a line, of a write that a kill or a full disk cut short: it was never kept.
    }
  }
  return records;
}
