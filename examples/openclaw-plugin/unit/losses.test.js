import assert from "node:assert/strict";
import test from "node:test";

import { Losses } from "../lib/losses.js";
import { logOf } from "./support.js";

const MIB = 1024 * 1024;
const lost = (session, events) => new Map([[session, { agent: "main", exchange: 1, event: events, end: 0 }]]);

test("a full queue is told once when it begins and once when it is over, and each session knows what it lost", () => {
  const [log, notes] = [logOf(), []];
  const losses = new Losses(log, (note) => notes.push(note), 8 * MIB);
  losses.add(lost("a", 2));
  losses.add(lost("b", 3));
  losses.settle(7 * MIB);
  losses.settle(MIB);
  losses.settle(0);

  assert.match(log.lines[0], /^warn: driftline: the queue was full \(8 MiB\).*queueMaxMiB/);
  assert.deepEqual(log.lines.slice(1), ["info: driftline: the queue has room again; 7 records of 2 sessions were dropped"]);
  assert.deepEqual(notes.map(({ s, b }) => [s, b.event, b.source, b.exchanges, b.events]), [
    ["a", "records_dropped", "openclaw", 1, 2],
    ["b", "records_dropped", "openclaw", 1, 3],
  ]);
  losses.add(lost("a", 1));
  assert.equal(log.lines.length, 3, "the next time is told again");
});
