/** What unit tests share: folders of their own, servers that answer as told, conditions that come to hold. */
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Settings for tests: quick, and with a token that must be seen nowhere. */
export const SETTINGS = { flushMs: 1, timeoutMs: 2000, retryBaseMs: 5, retryMaxMs: 20, token: "dl_secret", sendThinking: true, sendToolData: true };

/** A log that remembers. */
export function logOf() {
  const lines = [];
  const log = { lines };
  for (const level of ["info", "warn", "error"]) {
    log[level] = (words) => lines.push(`${level}: ${words}`);
  }
  return log;
}

/** A folder that goes with the test. */
export async function folderOf(test) {
  const folder = await mkdtemp(join(tmpdir(), "driftline-plugin-"));
  test.after(() => rm(folder, { recursive: true, force: true, maxRetries: 3 }));
  return folder;
}

/** A server that answers what `answer` tells: a status, or [status, body, headers]; `seen` are the calls. */
export async function serverOf(test, answer) {
  const seen = [];
  const server = createServer((request, response) => {
    const parts = [];
    request.on("data", (part) => parts.push(part));
    request.on("end", () => {
      const call = { path: request.url, headers: request.headers, body: JSON.parse(Buffer.concat(parts).toString() || "null") };
      seen.push(call);
      const [status, body = {}, headers = {}] = [answer(call, seen.length)].flat();
      response.writeHead(status, { "content-type": "application/json", ...headers });
      response.end(JSON.stringify(body));
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  test.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { base: `http://127.0.0.1:${server.address().port}`, seen };
}

/** Return as soon as the condition holds. */
export async function until(condition, what) {
  const ends = Date.now() + 10_000;
  while (!(await condition())) {
    if (Date.now() > ends) {
      throw new Error(`waited for ${what}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}
