import assert from "node:assert/strict";
import test from "node:test";

import { callsOf } from "../lib/calls.js";
import { Client } from "../lib/client.js";
import { Queue } from "../lib/queue.js";
import { Sender } from "../lib/sender.js";
import { Voice } from "../lib/voice.js";
import { SETTINGS, folderOf, logOf, serverOf, until } from "./support.js";

const event = (session, id) => ({ k: "event", s: session, a: "main", b: { event: "tool_call", event_id: id } });
const exchange = (session, id) => ({ k: "exchange", s: session, b: { session_id: session, exchange: { id } } });

/** What becomes of records at a server that answers so. */
async function sent(t, records, answer) {
  const server = await serverOf(t, answer);
  let end = () => {};
  t.after(() => end());
  const queue = await Queue.open(await folderOf(t), { maxBytes: 1e6, fsync: false });
  const [aside, log] = [[], logOf()];
  const sender = new Sender(queue, new Client({ ...SETTINGS, base: server.base }), async (refused) => aside.push(...refused), SETTINGS, log);
  records.forEach((record) => queue.append(record));
  await queue.kept();
  const work = sender.run();
  end = async () => {
    sender.stop();
    await queue.close();
    await work;
  };
  return { ...server, queue, aside, log, sender };
}

test("events of a session go together, and each session keeps its order", () => {
  const calls = callsOf([event("a", "1"), event("b", "1"), event("a", "2"), exchange("a", "x"), event("a", "3"), { k: "end", s: "a/b" }]);

  assert.deepEqual(
    calls.map((call) => [call.kind, call.session, call.events?.map(({ event_id: id }) => id).join()]),
    [["events", "a", "1,2"], ["events", "b", "1"], ["exchange", "a", undefined], ["events", "a", "3"], ["end", "a/b", undefined]],
  );
  assert.equal(calls.at(-1).path, "/api/audit/sessions/a/b/finalize");
});

test("a batch has at most 2000 events, and no id twice", () => {
  const many = Array.from({ length: 4100 }, (_, index) => event("a", `${index}`));
  assert.deepEqual(callsOf(many).map((call) => call.body.events.length), [2000, 2000, 100]);
  assert.deepEqual(callsOf([event("a", "1"), event("a", "1")]).map((call) => call.body.events.length), [1, 1]);
});

test("what fails is tried again until it is taken, and once only", async (t) => {
  const { seen, queue } = await sent(t, [exchange("a", "1"), exchange("a", "2")], (_, count) => (count < 4 ? 503 : 201));
  await until(() => queue.counters.delivered === 2, "delivery");

  assert.deepEqual(seen.map(({ body }) => body.exchange.id), ["1", "1", "1", "1", "2"]);
});

test("a pause is never shorter than Retry-After, and never the same twice", async (t) => {
  const server = await serverOf(t, (_, count) => [429, {}, { "retry-after": count === 1 ? "7" : new Date(Date.now() + 60_000).toUTCString() }]);
  const client = new Client({ ...SETTINGS, base: server.base });
  const sender = new Sender(null, client, null, { retryBaseMs: 100, retryMaxMs: 60_000 }, logOf());
  const [inSeconds, asDate] = [await client.post("/", {}), await client.post("/", {})];

  assert.equal(sender._pauseAfter(0, inSeconds), 7000);
  assert.ok(asDate.pauseMs > 50_000 && asDate.pauseMs <= 60_000);
  const drawn = Array.from({ length: 20 }, () => sender._pauseAfter(3, { pauseMs: 0 }));
  assert.ok(drawn.every((pause) => pause >= 400 && pause <= 800));
  assert.ok(new Set(drawn).size > 1);
});

test("what is refused is kept aside with its reason, and the rest goes on", async (t) => {
  const refusal = [409, { error: "exchange.id: known with another content", code: "conflict" }];
  const { queue, aside, log, seen } = await sent(t, [exchange("a", "1"), exchange("a", "2")], ({ body }) => (body.exchange.id === "1" ? refusal : 201));
  await until(() => queue.counters.delivered === 1, "delivery");

  assert.deepEqual(aside.map(({ status, code, body }) => [status, code, body.exchange.id]), [[409, "conflict", "1"]]);
  assert.equal(seen.length, 2);
  assert.match(log.lines.join(), /known with another content/);
  assert.equal(queue.counters.refused, 1);
});

test("single events that are refused are kept aside by themselves", async (t) => {
  const answer = [201, { accepted: 1, known: 0, refused: [{ index: 1, error: "events[1].timestamp: is no time" }] }];
  const { queue, aside } = await sent(t, [event("a", "1"), event("a", "2")], () => answer);
  await until(() => queue.counters.delivered === 1, "delivery");

  assert.deepEqual(aside.map(({ body }) => body.event_id), ["2"]);
});

test("a token that is not let in costs no record and is told once, without the token", async (t) => {
  let isRight = false;
  const { queue, aside, log, sender } = await sent(t, [exchange("a", "1")], () => (isRight ? 201 : [401, { error: "no such token" }]));
  await until(() => sender.trouble, "the refusal");
  isRight = true;
  await until(() => queue.counters.delivered === 1, "delivery");

  assert.deepEqual(aside, []);
  assert.equal(log.lines.filter((line) => /not let in \(401\)/.test(line)).length, 1);
  assert.doesNotMatch(log.lines.join(), /dl_secret/);
});

test("one record that the server fails on does not stop all others for ever", async (t) => {
  const { queue, aside } = await sent(t, [exchange("a", "1"), exchange("a", "2")], ({ body }) => (body.exchange.id === "1" ? 500 : 201));
  await until(() => queue.counters.delivered === 1, "delivery");

  assert.deepEqual(aside.map(({ status }) => status), [500]);
});

test("nothing is sent to where an answer leads, and a wrong address costs no record", async (t) => {
  const other = await serverOf(t, () => 201);
  const wrong = [[307, {}, { location: `${other.base}/api/audit/ingest` }], [404, "not here"], [400, { error: "Host", code: "host_not_allowed" }]];
  const { queue, aside, seen } = await sent(t, [exchange("a", "1")], (_, count) => wrong[count - 1] ?? 201);
  await until(() => queue.counters.delivered === 1, "delivery");

  assert.deepEqual([other.seen, aside, seen.length], [[], [], 4]);
});

test("the end of a session of which nothing was taken is no refusal", async (t) => {
  const { queue, aside } = await sent(t, [{ k: "end", s: "a" }], () => [404, { error: "there is no session of this id", code: "not_found" }]);
  await until(() => queue.counters.delivered === 1, "delivery");

  assert.deepEqual(aside, []);
});

test("an hour without a server costs a call a minute, two lines in the log and no record", async (t) => {
  const queue = await Queue.open(await folderOf(t), { maxBytes: 1e6, fsync: false });
  const log = logOf();
  const [taken, tries] = [[], []];
  let now = 0;
  const client = {
    post: async (path, { exchange: { id } }) => {
      tries.push(now);
      const isAway = now < 3_600_000;
      taken.push(...(isAway ? [] : [id]));
      return isAway ? { outcome: "retry", status: 0, reason: "ECONNREFUSED", pauseMs: 0 } : { outcome: "done", status: 201, pauseMs: 0 };
    },
  };
  const sender = new Sender(queue, client, async () => {}, { ...SETTINGS, retryBaseMs: 1000, retryMaxMs: 60_000 }, log);
  sender._pause = async (milliseconds) => {
    now += milliseconds;
    // Turns go on meanwhile.
    queue.append(exchange("a", `${tries.length}`));
    await queue.kept();
  };
  queue.append(exchange("a", "0"));
  await queue.kept();
  const work = sender.run();
  await until(() => taken.length > 60, "delivery");
  sender.stop();
  await queue.close();
  await work;

  assert.ok(tries.filter((at) => at < 3_600_000).length < 140, `${tries.length} tries`);
  assert.deepEqual(taken, taken.map((_, index) => `${index}`));
  assert.deepEqual(log.lines.map((line) => line.split(",")[0]), ["warn: driftline: cannot deliver", "info: driftline: delivering again"]);
});

test("a trouble that several lanes have is said once, and once that it is over", () => {
  const log = logOf();
  const voice = new Voice(log);
  voice.ill("a", "unreachable", "ECONNREFUSED", "/lane-0");
  voice.ill("b", "unreachable", "ECONNRESET", "/lane-1");
  voice.ill("b", "HTTP 503", "HTTP 503", "/lane-1");
  ["a", "a", "b"].forEach((sender) => voice.well(sender));

  assert.deepEqual(log.lines, [
    "warn: driftline: cannot deliver, ECONNREFUSED; what is recorded waits in /lane-0",
    "warn: driftline: cannot deliver, HTTP 503; what is recorded waits in /lane-1",
    "info: driftline: delivering again",
  ]);
});
