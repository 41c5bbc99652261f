/**
 * Folders of queues for processes that share a state folder: the gateway, and commands that run an agent beside it.
 *
 * A process claims a lane by a file that names it. It writes the file first and looks for others after that, so that of two that
 * come at once neither has the lane. The lane of a process that is gone is anybody's.
 */
import { readFileSync } from "node:fs";
import { mkdir, readdir, unlink, writeFile } from "node:fs/promises";
import { join } from "node:path";

import { SEGMENT } from "./queue.js";

const OWNER = /^owner-(\d+)-(\d+)$/;
const LANE = /^lane-\d+$/;
const MAX_LANES = 16;
const OURS = `owner-${process.pid}-${startOf(process.pid)}`;

/** Claim a lane of one's own; its folder. */
export async function claim(root) {
  for (let number = 0; number < MAX_LANES; number += 1) {
    const folder = join(root, `lane-${number}`);
    if (await claimed(folder)) {
      return folder;
    }
  }
  const folder = join(root, `lane-${MAX_LANES + process.pid}`);
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

async function claimed(folder) {
  await mkdir(folder, { recursive: true, mode: 0o700 });
  await writeFile(join(folder, OURS), "", { mode: 0o600 });
  for (const name of await readdir(folder)) {
    const [, pid, start] = OWNER.exec(name) ?? [];
    if (!pid || name === OURS) {
      continue;
    }
    if (isAlive(Number(pid), start)) {
      await release(folder);
      return false;
    }
    await unlink(join(folder, name)).catch(() => {});
  }
  return true;
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
