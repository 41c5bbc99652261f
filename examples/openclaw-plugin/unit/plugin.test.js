import assert from "node:assert/strict";
import { mkdir, readdir, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import test from "node:test";

import plugin, { HOOKS, register } from "../index.js";
import { SettingsError, isExposed, settingsOf } from "../lib/config.js";
import { claim, claimLeft, startOf } from "../lib/lanes.js";
import { hostOf } from "./host.js";
import { folderOf, serverOf, until } from "./support.js";

const ALLOWED = { hooks: { allowConversationAccess: true } };

test("settings that cannot work are refused by name, without their value", () => {
  for (const [config, words] of [
    [{ token: "dl_secret" }, /^url: is missing/],
    [{ url: "nowhere", token: "dl_secret" }, /^url: is no address/],
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
  t.after(() => Promise.all(pipelines.map((pipeline) => pipeline.stop())));
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
  for (const [lane, owner] of [["lane-0", `${process.ppid}-${startOf(process.ppid)}`], ["lane-2", `${process.ppid}-1`]]) {
    await mkdir(join(root, lane));
    await writeFile(join(root, lane, `owner-${owner}`), "");
    await writeFile(join(root, lane, "0000000001.jsonl"), "");
  }
  const own = await claim(root);

  assert.equal(own, join(root, "lane-1"));
  assert.deepEqual(await claimLeft(root), [join(root, "lane-2")]);
});
