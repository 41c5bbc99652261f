/** Several registrations in a process, as the real 2026.9 makes them: once as `full`, then as `discovery`, each from a copy of the files. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cp, readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import test from "node:test";
import { pathToFileURL } from "node:url";

import { hostOf } from "./host.js";
import { stopCurrent } from "../lib/shared.js";
import { folderOf, serverOf, until } from "./support.js";

const ALLOWED = { hooks: { allowConversationAccess: true } };
const KEY = Symbol.for("driftline.openclaw.process");
const PLUGIN = new URL("..", import.meta.url);
const calling = (id) => ({ role: "assistant", content: [{ type: "toolCall", id, name: "exec", arguments: {} }], timestamp: 1, stopReason: "toolUse" });

/** A function that loads a copy of the plugin and registers it with a host of its own, and what the copies share. */
async function copies(t, config) {
  const root = await folderOf(t);
  t.after(async () => {
    await Promise.all([...(globalThis[KEY]?.open ?? [])].map((pipeline) => pipeline.stop()));
    delete globalThis[KEY];
  });
  const settings = { token: "x", queueDir: join(root, "queue"), heartbeatSeconds: 0, flushMs: 1, ...config };
  let count = 0;
  const load = async (mode, more = {}) => {
    const folder = join(root, `copy-${(count += 1)}`);
    for (const name of ["index.js", "package.json", "openclaw.plugin.json", "lib"]) {
      await cp(new URL(name, PLUGIN), join(folder, name), { recursive: true });
    }
    const { register } = await import(pathToFileURL(join(folder, "index.js")));
    const host = hostOf({ ...settings, ...more }, { entry: ALLOWED });
    host.api.registrationMode = mode;
    return { host, pipeline: register(host.api) };
  };
  return { load, queueDir: settings.queueDir };
}

/** The records in the files of a queue. */
async function recordsIn(queueDir) {
  const found = [];
  for (const lane of await readdir(queueDir)) {
    for (const name of (await readdir(join(queueDir, lane))).filter((one) => /^\d+\.jsonl$/.test(one))) {
      found.push(...(await readFile(join(queueDir, lane, name), "utf8")).trim().split("\n").filter(Boolean).map((line) => JSON.parse(line)));
    }
  }
  return found;
}

const update = (id, message) => ({ messageId: id, message, sessionId: "s", sessionKey: "agent:main:s" });

test("copies that one process registers share a pipeline, and each entry is recorded once", async (t) => {
  const server = await serverOf(t, () => 201);
  const { load, queueDir } = await copies(t, { url: server.base });
  const all = [await load("full"), await load("discovery"), await load("discovery")];
  assert.equal(new Set(all.map(({ pipeline }) => pipeline)).size, 1);
  all.forEach(({ host }) => host.update(update("a1", calling("t1"))));
  all[2].host.call("after_tool_call", { toolName: "exec", toolCallId: "t1", result: "ok" }, { sessionId: "s", runId: "r" });
  await all[0].pipeline.kept();

  assert.deepEqual((await recordsIn(queueDir)).map(({ b }) => b.event), ["tool_call", "tool_output"]);
  assert.deepEqual(await readdir(queueDir), ["lane-0"]);
  assert.deepEqual(all.flatMap(({ host }) => host.logged), []);
});

test("a hook that comes after the gateway has stopped is recorded in a queue that is open again", async (t) => {
  const { load, queueDir } = await copies(t, { url: "http://127.0.0.1:1" });
  const [full, live] = [await load("full"), await load("discovery")];
  live.host.update(update("a1", calling("t1")));
  await full.host.call("gateway_stop", {}, {});
  assert.equal((await readdir(join(queueDir, "lane-0"))).some((name) => name.startsWith("owner-")), false);
  live.host.call("after_tool_call", { toolName: "exec", toolCallId: "t1", result: "ok" }, { sessionId: "s", runId: "r" });
  await globalThis[KEY].current.kept();

  assert.deepEqual((await recordsIn(queueDir)).map(({ b }) => b.event), ["tool_call", "tool_output"]);
});

test("a host that stops is not kept waiting, and what was recorded is on disk", async (t) => {
  const { load, queueDir } = await copies(t, { url: "http://127.0.0.1:1" });
  const { host, pipeline } = await load("full");
  await pipeline.kept();
  host.update(update("a1", calling("t1")));
  pipeline.stop = () => new Promise(() => {}); // A disk that does not answer.
  await stopCurrent(1);

  assert.deepEqual((await recordsIn(queueDir)).map(({ b }) => b.event), ["tool_call"]);
  delete pipeline.stop;
});

test("what is known of a turn outlives a change of the settings", async (t) => {
  const { load, queueDir } = await copies(t, { url: "http://127.0.0.1:1" });
  const first = await load("full");
  first.host.update(update("u1", { role: "user", content: "Hi", timestamp: 1 }));
  const second = await load("full", { flushMs: 2 });
  assert.notEqual(first.pipeline, second.pipeline);
  second.host.update(update("a1", { role: "assistant", content: "Ho", timestamp: 2, stopReason: "stop" }));
  second.host.call("session_end", { reason: "daily" }, { sessionId: "s", sessionKey: "agent:main:s" });
  await second.pipeline.kept();

  assert.deepEqual((await recordsIn(queueDir)).filter(({ k }) => k === "exchange").map(({ b }) => b.exchange.id), ["s:u1"]);
});

test("a registration whose log is closed keeps nothing from being delivered", async (t) => {
  const server = await serverOf(t, (_, count) => (count < 3 ? 503 : 201));
  const { load } = await copies(t, { url: server.base, retryBaseMs: 10, retryMaxMs: 10 });
  const { host, pipeline } = await load("full");
  host.api.logger.warn = () => {
    throw new Error("Plugin driftline is retiring");
  };
  host.update(update("a1", calling("t1")));
  await until(() => pipeline.status().delivered === 1, "delivery");
});

test("listeners of registrations that were replaced are let go", async (t) => {
  const { load } = await copies(t, { url: "http://127.0.0.1:1" });
  const all = [];
  for (let number = 0; number < 12; number += 1) {
    all.push(await load("discovery"));
  }
  assert.equal(globalThis[KEY].listening.size, 8);
  all[0].host.call("session_start", {}, { sessionId: "s" });
  assert.ok(globalThis[KEY].listening.has(all[0].host.api), "one that is told something is alive");
});

test("a command that ends before its queue is open keeps what it recorded", async (t) => {
  const root = await folderOf(t);
  const script = `
    import { register } from ${JSON.stringify(new URL("index.js", PLUGIN).href)};
    const hooks = {};
    register({
      pluginConfig: { url: "http://127.0.0.1:1", token: "x", queueDir: ${JSON.stringify(root)}, heartbeatSeconds: 0 },
      registrationMode: "discovery", logger: { error() {}, warn() {}, info() {} }, on: (name, handler) => { hooks[name] = handler; },
    });
    hooks.before_tool_call({ toolName: "exec", params: {}, toolCallId: "t" }, { sessionId: "s", runId: "r" });
    process.exit(0);
  `;
  await new Promise((resolve, reject) => {
    execFile(process.execPath, ["--input-type=module", "-e", script], (error) => (error ? reject(error) : resolve()));
  });
  assert.deepEqual((await recordsIn(root)).map(({ b }) => b.event), ["tool_call"]);
});
