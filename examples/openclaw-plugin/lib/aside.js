/** What the server refused, with its reason: a file of lines, of which the newest are kept. */
import { appendFile, rename, stat } from "node:fs/promises";
import { join } from "node:path";

const MAX_BYTES = 4 * 1024 * 1024;

/** A function that keeps refused records in `refused.jsonl` of a folder; beyond 4 MiB the file before becomes `refused.old.jsonl`. */
export function keeper(folder, onFault = () => {}) {
  const path = join(folder, "refused.jsonl");
  return async (refused) => {
    try {
      const size = await stat(path).then(({ size: bytes }) => bytes, () => 0);
      if (size > MAX_BYTES) {
        await rename(path, join(folder, "refused.old.jsonl"));
      }
      await appendFile(path, refused.map((one) => `${JSON.stringify(one)}\n`).join(""), { mode: 0o600 });
    } catch (error) {
      onFault(error);
    }
  };
}
