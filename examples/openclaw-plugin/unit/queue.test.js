import assert from "node:assert/strict";
import { appendFile, readFile, readdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import test from "node:test";

import { Queue } from "../lib/queue.js";
import { folderOf } from "./support.js";

const OPTIONS = { maxBytes: 1024 * 1024, fsync: false };

/** All records that a queue still holds. */
async function drained(queue) {
  const found = [];
  for (;;) {
    const { records, end } = await queue.window();
    await queue.commit(end, { delivered: records.length });
    if (records.length === 0) {
      return found;
    }
    found.push(...records);
  }
}

test("what was kept is there for the next process, in order and once", async (t) => {
  const folder = await folderOf(t);
  const first = await Queue.open(folder, OPTIONS);
  for (let n = 0; n < 5; n += 1) {
    first.append({ n });
  }
  await first.kept(); // and then it is killed: nothing is closed
  const second = await Queue.open(folder, OPTIONS);
  second.append({ n: 5 });
  await second.kept();

  assert.deepEqual((await drained(second)).map(({ n }) => n), [0, 1, 2, 3, 4, 5]);
  assert.deepEqual(await drained(await Queue.open(folder, OPTIONS)), []);
});

test("what is not kept when the process ends is kept at once", async (t) => {
  const folder = await folderOf(t);
  const first = await Queue.open(folder, OPTIONS);
  first.append({ n: 0 });
  await first.kept();
  first.append({ n: 1 });
  first.append({ n: 2 });
  first.keepNow();
  await first.kept();

  assert.deepEqual((await drained(await Queue.open(folder, OPTIONS))).map(({ n }) => n), [0, 1, 2]);
});

test("a process that ends in the middle of an append leaves each record once", async (t) => {
  for (const moment of [0, 1, 2, 3, 5, 8]) {
    const folder = await folderOf(t);
    const queue = await Queue.open(folder, OPTIONS);
    queue.append({ n: 0 });
    for (let turn = 0; turn < moment; turn += 1) {
      await new Promise(setImmediate);
    }
    queue.append({ n: 1 });
    queue.keepNow();
    const files = (await readdir(folder)).filter((name) => name.endsWith(".jsonl"));
    const lines = (await Promise.all(files.sort().map((name) => readFile(join(folder, name), "utf8")))).join("").trim().split("\n");

    assert.deepEqual(lines, ['{"n":0}', '{"n":1}'], `after ${moment} turns of the event loop`);
    await queue.close();
  }
});

test("a folder that is tidied away is made again", async (t) => {
  const folder = join(await folderOf(t), "lane-0");
  const queue = await Queue.open(folder, OPTIONS);
  await rm(folder, { recursive: true });
  queue.append({ n: 0 });
  await queue.kept();

  assert.deepEqual((await drained(queue)).map(({ n }) => n), [0]);
});

test("what gathered while the disk was slow is written in files of their size", async (t) => {
  const folder = await folderOf(t);
  const queue = await Queue.open(folder, OPTIONS);
  for (let n = 0; n < 40; n += 1) {
    queue.append({ n, text: "x".repeat(100_000) });
  }
  await queue.kept();

  assert.ok(queue.bytes <= OPTIONS.maxBytes + 110_000, `${queue.bytes} bytes`);
  assert.equal((await drained(queue)).at(-1).n, 39);
  await queue.close();
});

test("a line torn by a kill is passed over, and what follows it is not", async (t) => {
  const folder = await folderOf(t);
  const first = await Queue.open(folder, OPTIONS);
  first.append({ n: 0 });
  await first.kept();
  await appendFile(join(folder, "0000000001.jsonl"), '{"n":1,"text":"ha');
  const second = await Queue.open(folder, OPTIONS);
  second.append({ n: 2 });
  await second.kept();

  assert.deepEqual((await drained(second)).map(({ n }) => n), [0, 2]);
});

test("what was delivered and not noted is delivered again", async (t) => {
  const folder = await folderOf(t);
  const first = await Queue.open(folder, OPTIONS);
  first.append({ n: 0 });
  await first.kept();
  await first.window();

  assert.deepEqual((await drained(await Queue.open(folder, OPTIONS))).map(({ n }) => n), [0]);
});

test("beyond its size the oldest goes, and what went is counted by session", async (t) => {
  const folder = await folderOf(t);
  const lost = [];
  const queue = await Queue.open(folder, { maxBytes: 200_000, fsync: false, onDrop: (one) => lost.push(one) });
  for (let n = 0; n < 40; n += 1) {
    queue.append({ k: "event", s: `s${n % 2}`, b: { n, text: "x".repeat(10_000) } });
    await queue.kept();
  }
  const left = await drained(queue);

  assert.equal(left.at(-1).b.n, 39);
  assert.equal(left.length + queue.counters.dropped, 40);
  const counted = lost.flatMap((one) => [...one.values()]).reduce((sum, { event }) => sum + event, 0);
  assert.equal(counted, queue.counters.dropped);
  assert.ok(queue.counters.dropped > 10);
});

test("files of what was delivered are removed", async (t) => {
  const folder = await folderOf(t);
  const queue = await Queue.open(folder, { maxBytes: 200_000, fsync: true });
  for (let n = 0; n < 12; n += 1) {
    queue.append({ n, text: "x".repeat(10_000) });
    await queue.kept();
  }
  await drained(queue);
  const files = (await readdir(folder)).filter((name) => name.endsWith(".jsonl"));

  assert.ok(files.length <= 1, files.join());
  assert.equal(queue.bytes, 0);
});

test("a record longer than a window is read whole", async (t) => {
  const queue = await Queue.open(await folderOf(t), { maxBytes: 64 * 1024 * 1024, fsync: false });
  queue.append({ text: "ü".repeat(1_500_000) });
  await queue.kept();

  assert.equal((await drained(queue))[0].text.length, 1_500_000);
});

test("a state that was damaged costs a repetition and nothing else", async (t) => {
  const folder = await folderOf(t);
  const first = await Queue.open(folder, OPTIONS);
  first.append({ n: 0 });
  await first.kept();
  await writeFile(join(folder, "state.json"), "{");

  assert.equal((await drained(await Queue.open(folder, OPTIONS))).length, 1);
});

test("what cannot be written as JSON is told and harms nothing", async (t) => {
  const faults = [];
  const queue = await Queue.open(await folderOf(t), { ...OPTIONS, onFault: (error) => faults.push(error) });
  const round = {};
  round.round = round;
  queue.append(round);
  queue.append({ n: 1 });
  await queue.kept();

  assert.equal(faults.length, 1);
  assert.equal((await drained(queue)).length, 1);
});
