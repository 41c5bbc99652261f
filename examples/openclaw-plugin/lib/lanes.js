/**
 * Folders of queues for processes that share a state folder: the gateway, and commands that run an agent beside it.
 *
 * A process claims a lane by a file that names it. It writes the file first and looks for others after that, so that of two that
 * come at once neither has the lane. The lane of a process that is gone is anybody's. Whether a process of another machine or
 * container is gone cannot be asked: it is when it has not touched its file for GONE_MS.
 */
import { createHash } from "node:crypto";
import { readFileSync, readlinkSync } from "node:fs";
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
  await writeFile(join(folder, OURS), "", { mode: 0o600 });
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
