/**
 * Folders of queues for processes that share a state folder: the gateway, and commands that run an agent beside it.
 *
 * A process claims a lane by a file that names it. It writes the file first and looks for others after that, so that of two that
 * come at once neither has the lane. The lane of a process that is gone is anybody's. Whether a process of another machine or
 * container is gone cannot be asked: it is when it has not touched its file for GONE_MS. Within a process, whoever creates the file
 * has the lane: OpenClaw loads copies of a plugin, and another version of this one may be among them.
 */
import { createHash } from "node:crypto";
import { appendFileSync, mkdirSync, readFileSync, readlinkSync } from "node:fs";
import { mkdir, readdir, stat, unlink, utimes, writeFile } from "node:fs/promises";
import { hostname } from "node:os";
import { join } from "node:path";

import { SEGMENT } from "./queue.js";

/** How often the owner of a lane shows that it is there. */
export const TOUCH_MS = 60_000;
const GONE_MS = 5 * TOUCH_MS;
const OWNER = /^owner-([0-9a-f]{8})-(\d+)-(\d+)$/;
const LANE = /^lane-/;
const MAX_LANES = 16;
/** Where this process is, as owners' files say it. */
export const HERE = placeOf();
const OURS = `owner-${HERE}-${process.pid}-${startOf(process.pid)}`;

/** Claim a lane of one's own; its folder. */
export async function claim(root) {
  for (let number = 0; number < MAX_LANES; number += 1) {
    const folder = join(root, `lane-${number}`);
    if (await claimed(folder)) {
      return folder;
    }
  }
  const folder = join(root, `lane-${HERE}-${process.pid}`);
  await claimed(folder);
  return folder;
}

/** Claim the lanes that nobody owns any more and that still hold something; their folders. */
export async function claimLeft(root) {
  const found = [];
  for (const name of await readdir(root)) {
    const folder = join(root, name);
    const files = LANE.test(name) ? await readdir(folder) : [];
    if (files.some((file) => SEGMENT.test(file)) && !files.includes(OURS) && (await claimed(folder))) {
      found.push(folder);
    }
  }
  return found;
}

/** Keep records of a process that ends before it has a lane; whoever looks for lanes that nobody owns delivers them. */
export function keepInLaneOf(root, records) {
  const folder = join(root, `lane-${HERE}-${process.pid}-${startOf(process.pid)}`);
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  appendFileSync(join(folder, "0000000001.jsonl"), records.map((record) => `${JSON.stringify(record)}\n`).join(""), { mode: 0o600 });
}

/** Give a lane up. */
export async function release(folder) {
  await unlink(join(folder, OURS)).catch(() => {});
}

/** Show that a lane is owned. */
export async function touch(folder) {
  const now = new Date();
  await utimes(join(folder, OURS), now, now);
}

async function claimed(folder) {
  await mkdir(folder, { recursive: true, mode: 0o700 });
  if (!(await isMarked(join(folder, OURS)))) {
    return false;
  }
  for (const name of await readdir(folder)) {
    const [, place, pid, start] = OWNER.exec(name) ?? [];
    if (!pid || name === OURS) {
      continue;
    }
    if (place === HERE ? isAlive(Number(pid), start) : await isTouched(join(folder, name))) {
      await release(folder);
      return false;
    }
    await unlink(join(folder, name)).catch(() => {});
  }
  return true;
}

/** Create the file that says that this process owns a lane; whether nobody in this process had. */
async function isMarked(path) {
  try {
    await writeFile(path, "", { mode: 0o600, flag: "wx" });
    return true;
  } catch (error) {
    if (error.code !== "EEXIST") {
      throw error;
    }
  }
  // A process before had the same id, where the system does not tell when processes began.
  const isOlder = await stat(path).then(({ mtimeMs }) => mtimeMs < performance.timeOrigin - 1000, () => false);
  if (isOlder) {
    const now = new Date();
    await utimes(path, now, now);
  }
  return isOlder;
}

async function isTouched(path) {
  return stat(path).then(({ mtimeMs }) => Date.now() - mtimeMs < GONE_MS, () => false);
}

/** Where processes know each other by their ids: the machine, or the container. */
function placeOf() {
  let space = "";
  try {
    space = readlinkSync("/proc/self/ns/pid");
  } catch {
    // No such thing on this system.
  }
  return createHash("sha256").update(`${hostname()} ${space}`).digest("hex").slice(0, 8);
}

/** When a process began, in ticks since the machine did: an id alone may be another's by now. 0 where that is not told. */
export function startOf(pid) {
  try {
    return readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").at(-1).split(" ")[19];
  } catch {
    return "0";
  }
}

function isAlive(pid, start) {
  if (start !== startOf(pid) || (pid === process.pid && start === "0")) {
    return false;
  }
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error.code === "EPERM";
  }
}
