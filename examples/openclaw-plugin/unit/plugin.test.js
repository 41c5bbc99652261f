import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdir, readFile, readdir, rm, stat, utimes, writeFile } from "node:fs/promises";
import { join } from "node:path";
import test from "node:test";

import plugin, { HOOKS, register } from "../index.js";
import { SettingsError, isExposed, settingsOf } from "../lib/config.js";
import { HERE, claim, claimLeft, startOf } from "../lib/lanes.js";
import { Pipeline } from "../lib/pipeline.js";
import { hostOf } from "./host.js";
import { folderOf, logOf, serverOf, until } from "./support.js";

const ALLOWED = { hooks: { allowConversationAccess: true } };

test("settings that cannot work are refused by name, without their value", () => {
  for (const [config, words] of [
    [{ token: "dl_secret" }, /^url: is missing/],
    [{ url: "nowhere", token: "dl_secret" }, /^url: is not an address/],
    [{ url: "ftp://host", token: "dl_secret" }, /^url: begins with neither/],
    [{ url: "http://user:dl_secret@host", token: "x" }, /^url: holds more/],
    [{ url: "http://host" }, /^token: is missing/],
    [{ url: "http://host", token: "dl_\nsecret" }, /^token: holds characters/],
  ]) {
    assert.throws(() => settingsOf(config, {}), (error) => error instanceof SettingsError && words.test(error.message) && !/dl_/.test(error.message));
  }
});

test("the environment stands in for the configuration, and defaults are the manifest's", () => {
  const settings = settingsOf({}, { DRIFTLINE_URL: "http://127.0.0.1:8377/", DRIFTLINE_TOKEN: "dl_x" }, "/state");

  assert.equal(settings.base, "http://127.0.0.1:8377");
  assert.deepEqual([settings.queueDir, settings.queueMaxBytes, settings.fsync], ["/state/driftline", 64 * 1024 * 1024, true]);
  assert.equal(isExposed(settings), false);
  assert.equal(settingsOf({ url: "http://h", token: "${DRIFTLINE_TOKEN}" }, { DRIFTLINE_TOKEN: "dl_y" }).token, "dl_y");
  assert.throws(() => settingsOf({ url: "http://h", token: "${DRIFTLINE_TOKEN}" }, {}), /^SettingsError|token: is missing/);
  assert.equal(isExposed(settingsOf({ url: "http://far", token: "x" }, {})), true);
});

test("without settings OpenClaw goes on, and is told why nothing is sent", async (t) => {
  const host = hostOf({}, { stateDir: await folderOf(t) });
  plugin.register(host.api);

  assert.equal(host.hooks.size, 0);
  assert.match(host.logged.join(), /sends nothing. url: is missing/);
});

test("a plugin that is only looked at shows its hooks and touches no disk", async (t) => {
  const folder = await folderOf(t);
  const host = hostOf({ url: "http://127.0.0.1:1", token: "x", queueDir: join(folder, "queue") }, { entry: ALLOWED });
  host.api.registrationMode = "discovery";
  register(host.api);
  await new Promise(setImmediate);

  assert.deepEqual([...host.hooks.keys()].sort(), [...Object.keys(HOOKS), "gateway_stop"].sort());
  assert.deepEqual(await readdir(folder), []);
});

/** A host whose plugin has stopped before its folder goes. */
async function registered(t, config) {
  const pipelines = [];
  t.after(async () => {
    await Promise.all(pipelines.map((pipeline) => pipeline.stop()));
    // The next test is another process.
    delete globalThis[Symbol.for("driftline.openclaw.process")];
  });
  const host = hostOf({ token: "x", queueDir: await folderOf(t), heartbeatSeconds: 0, flushMs: 1, ...config }, { entry: ALLOWED });
  const again = () => {
    pipelines[0] = register(host.api);
    return pipelines[0];
  };
  return { host, again, pipeline: again() };
}

test("no hook throws or answers, whatever it is given", async (t) => {
  const { host, pipeline } = await registered(t, { url: "http://127.0.0.1:1" });
  const round = { sessionId: "s" };
  round.params = round.result = round.messages = round.usage = round;
  const odd = [undefined, null, {}, { messages: [null, 3, { role: "user" }, { role: "assistant", content: 7 }] }, { usage: "x", assistantTexts: [1] }, round];
  for (const name of Object.keys(HOOKS)) {
    for (const event of odd) {
      for (const context of [undefined, {}, { sessionId: "s", runId: "r" }]) {
        assert.equal(host.call(name, event, context), undefined, name);
      }
    }
  }
  host.update(null);
  host.update({ messageId: "m", message: { role: "assistant", content: [null] }, sessionId: "s" });
  await pipeline.kept();
});

test("files of the queue are the user's alone, and registering again goes on with them", async (t) => {
  const server = await serverOf(t, () => 201);
  const { host, again } = await registered(t, { url: server.base });
  const second = again();
  const { queueDir } = second.settings;
  host.call("before_tool_call", { toolName: "exec", params: {}, toolCallId: "t" }, { sessionId: "s", runId: "r" });
  await until(() => second.status().delivered === 1, "delivery");
  await second.stop();

  assert.deepEqual((await readdir(queueDir)).sort(), ["lane-0"]);
  for (const name of await readdir(join(queueDir, "lane-0"))) {
    assert.equal((await stat(join(queueDir, "lane-0", name))).mode & 0o077, 0, name);
  }
});

test("registering again with other settings begins anew, and nothing is told twice", async (t) => {
  const { host, again, pipeline } = await registered(t, { url: "http://127.0.0.1:1" });
  assert.equal(again(), pipeline);
  host.api.pluginConfig = { ...host.api.pluginConfig, flushMs: 2 };
  const other = again();

  assert.notEqual(other, pipeline);
  host.update({ messageId: "a1", message: { role: "assistant", content: [{ type: "toolCall", id: "t", name: "exec" }], timestamp: 1 }, sessionId: "s", sessionKey: "k" });
  await other.kept();
  const [file] = (await readdir(join(other.settings.queueDir, "lane-0"))).filter((name) => name.endsWith(".jsonl"));
  assert.equal((await readFile(join(other.settings.queueDir, "lane-0", file), "utf8")).trim().split("\n").length, 1);
});

test("a folder that cannot be written is tried again, and what is lost meanwhile is told", async (t) => {
  const folder = await folderOf(t);
  await writeFile(join(folder, "queue"), "");
  const log = logOf();
  const settings = settingsOf({ url: "http://127.0.0.1:1", token: "x", queueDir: join(folder, "queue"), heartbeatSeconds: 0 }, {});
  const pipeline = new Pipeline(settings, log);
  await pipeline.start();
  for (let n = 0; n < 502; n += 1) {
    pipeline.recorder.beforeToolCall({ toolName: "exec", params: { n } }, { sessionId: "s", runId: "r" });
  }
  assert.equal(pipeline.status().dropped, 2);
  assert.match(log.lines.join(), /nothing can be kept in /);
  await rm(join(folder, "queue"));
  pipeline._reopenAt = 0;
  await pipeline.start();
  await pipeline.kept();

  assert.ok(pipeline.status().queuedBytes > 0);
  await pipeline.stop();
});

test("a process that ends without a word keeps what was recorded", async (t) => {
  const folder = await folderOf(t);
  const script = `
    import { register } from ${JSON.stringify(new URL("../index.js", import.meta.url).href)};
    const hooks = {};
    const pipeline = register({
      pluginConfig: { url: "http://127.0.0.1:1", token: "x", queueDir: ${JSON.stringify(folder)}, heartbeatSeconds: 0 },
      logger: { error() {}, warn() {}, info() {} }, on: (name, handler) => { hooks[name] = handler; },
    });
    await pipeline.start();
    const context = { sessionId: "s", runId: "r" };
    hooks.before_tool_call({ toolName: "exec", params: {}, toolCallId: "t" }, context);
    hooks.agent_end({ messages: [{ role: "user", content: "Hi", timestamp: 1e12 }, { role: "assistant", content: "Ho", timestamp: 1e12 }], success: true }, context);
    process.exit(0);
  `;
  await new Promise((resolve, reject) => {
    execFile(process.execPath, ["--input-type=module", "-e", script], (error) => (error ? reject(error) : resolve()));
  });
  const kept = [];
  for (const name of (await readdir(join(folder, "lane-0"))).filter((one) => one.endsWith(".jsonl"))) {
    kept.push(await readFile(join(folder, "lane-0", name), "utf8"));
  }
  assert.deepEqual([...new Set(kept.join("").trim().split("\n").map((line) => JSON.parse(line).k))].sort(), ["event", "exchange"]);
});

test("a lane of another machine or container is taken over when nobody shows there any more", async (t) => {
  const root = await folderOf(t);
  await mkdir(join(root, "lane-0"));
  const owner = join(root, "lane-0", "owner-00000000-1-1");
  await writeFile(owner, "");
  await writeFile(join(root, "lane-0", "0000000001.jsonl"), "");
  assert.deepEqual(await claimLeft(root), []);
  const before = new Date(Date.now() - 6 * 60_000);
  await utimes(owner, before, before);

  assert.deepEqual(await claimLeft(root), [join(root, "lane-0")]);
});

test("a run gives signs of life while it lasts", async (t) => {
  const server = await serverOf(t, () => 200);
  const { host, pipeline } = await registered(t, { url: server.base, heartbeatSeconds: 1 });
  await pipeline.start();
  host.call("session_start", { sessionId: "s" }, { sessionId: "s" });
  const beats = () => server.seen.filter(({ path }) => path === "/api/audit/heartbeat");
  await until(() => beats().length === 1, "a sign of life");

  assert.deepEqual(beats()[0].body, { session_id: "s" });
});

test("a lane has one owner, and that of a process that is gone is taken over", async (t) => {
  const root = await folderOf(t);
  for (const [lane, owner] of [["lane-0", `${HERE}-${process.ppid}-${startOf(process.ppid)}`], ["lane-2", `${HERE}-${process.ppid}-1`]]) {
    await mkdir(join(root, lane));
    await writeFile(join(root, lane, `owner-${owner}`), "");
    await writeFile(join(root, lane, "0000000001.jsonl"), "");
  }
  const own = await claim(root);

  assert.equal(own, join(root, "lane-1"));
  assert.deepEqual(await claimLeft(root), [join(root, "lane-2")]);
});
