/**
 * A stand-in for OpenClaw: registers the plugin with the interface it has there, and calls its hooks as they are called there.
 *
 * As a program it takes a line of JSON for each thing to do and answers each with a line: `{"hook", "event", "context"}`,
 * `{"update"}` of a transcript, or `{"do": "kept" | "status" | "drained" | "end"}`. The first line is `{"config", "entry"}`. With
 * `"at"`, milliseconds since 1970, it is then.
 */
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

import plugin, { register } from "../index.js";

/** What OpenClaw gives a plugin, as far as ours uses it; `hooks` and `logged` are for tests. */
export function hostOf(config, { entry = {}, stateDir, hasTranscripts = true } = {}) {
  const hooks = new Map();
  const listeners = new Set();
  const logged = [];
  const log = (level) => (words) => logged.push(`${level}: ${words}`);
  const mayRead = entry.hooks?.allowConversationAccess === true;
  const onSessionTranscriptUpdate = (listener) => {
    listeners.add(listener);
    return () => listeners.delete(listener);
  };
  const api = {
    id: plugin.id,
    registrationMode: "full",
    pluginConfig: config,
    config: { plugins: { entries: { [plugin.id]: entry } } },
    logger: { debug: log("debug"), info: log("info"), warn: log("warn"), error: log("error") },
    runtime: {
      state: { resolveStateDir: () => stateDir },
      events: hasTranscripts ? { onSessionTranscriptUpdate } : {},
    },
    on(name, handler) {
      // OpenClaw keeps these back from plugins of others that were not allowed to read conversations.
      if (mayRead || !["llm_output", "agent_end"].includes(name)) {
        hooks.set(name, handler);
      }
    },
  };
  return {
    api,
    hooks,
    logged,
    call: (name, event, context) => hooks.get(name)?.(event, context),
    update: (update) => listeners.forEach((listener) => listener(update)),
  };
}

async function main() {
  let host = null;
  let pipeline = null;
  const clock = Date.now;
  let offset = 0;
  Date.now = () => clock() + offset;
  for await (const line of createInterface({ input: process.stdin })) {
    const wanted = JSON.parse(line);
    offset = wanted.at ? wanted.at - clock() : offset;
    let answer = {};
    if (!host) {
      host = hostOf(wanted.config, { entry: wanted.entry, hasTranscripts: wanted.hasTranscripts ?? true });
      pipeline = register(host.api);
    } else if (wanted.hook) {
      const began = performance.now();
      const returned = host.call(wanted.hook, wanted.event, wanted.context);
      answer = { ms: performance.now() - began, returned: returned === undefined ? null : String(returned) };
    } else if (wanted.update) {
      host.update(wanted.update);
    } else {
      answer = await done(wanted.do, pipeline);
    }
    process.stdout.write(`${JSON.stringify({ ...answer, logged: host.logged.splice(0) })}\n`);
    if (wanted.do === "end") {
      process.exit(0);
    }
  }
}

async function done(what, pipeline) {
  await pipeline?.kept();
  if (what === "drained") {
    pipeline.recorder.settle();
    await pipeline.kept();
    while (pipeline.status().queuedBytes > 0) {
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  }
  if (what === "end") {
    await pipeline?.stop();
  }
  return { status: pipeline?.status() ?? null, pid: process.pid };
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  await main();
}
