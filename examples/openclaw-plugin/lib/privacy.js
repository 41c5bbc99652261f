/** What of tools is sent where their data must stay: that they were called, and which calls were the same. */
import { createHmac, randomBytes } from "node:crypto";

import { jsonText } from "./texts.js";

/** New in every process, so that nobody can find out arguments by trying. */
const SALT = randomBytes(32);

/** The event without arguments and result. Equal arguments stay equal, so that repeated calls are still found. */
export function withheld(event) {
  const kept = { ...event };
  if (event.arguments !== undefined) {
    kept.arguments = { withheld: createHmac("sha256", SALT).update(jsonText(event.arguments)).digest("hex").slice(0, 32) };
  }
  if (event.result !== undefined) {
    kept.result = event.result ? "[withheld]" : "";
  }
  return kept;
}
