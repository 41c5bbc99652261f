/**
 * Ids as Driftline's import gives them, so that a transcript that is imported later meets what was sent.
 *
 * An exchange is `<session>:<entry of the user message>`, a further answer to the same message `…~<entry of its first message>`;
 * an event is `<entry>`, or `<entry>.<k>` where one entry gives several.
 */

import { createHash } from "node:crypto";

/** What the payload of every event says of where it comes from; the import says the same. */
export const SOURCE = "openclaw";

const MAX_ID = 256;
const UUID = /[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}/;

/** The id of an exchange: of the session, the user message, and the first message of a further answer. */
export function exchangeId(session, ...entries) {
  const id = `${escaped(session)}:${entries.map(escaped).join("~")}`;
  // Longer ones are taken by nobody.
  return id.length <= MAX_ID ? id : `${id.slice(0, MAX_ID - 33)}~${createHash("sha256").update(id).digest("hex").slice(0, 32)}`;
}

/** The ids of the events of one entry. */
export function eventIds(entry, count) {
  const numbered = count > 1 || entry.includes(".");
  return Array.from({ length: count }, (_, index) => (numbered ? `${entry}.${index}` : entry));
}

/** The id of the session whose transcript a file is. */
export function sessionOfFile(file) {
  const stem = typeof file === "string" ? /([^/\\]+)\.jsonl$/.exec(file)?.[1] : undefined;
  return stem && (UUID.exec(stem)?.[0] ?? stem.replace(/-topic-[^/]*$/, ""));
}

function escaped(part) {
  return part.replaceAll("%", "%25").replaceAll(":", "%3A").replaceAll("~", "%7E");
}
