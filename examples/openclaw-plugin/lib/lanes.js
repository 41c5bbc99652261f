/**
 * Folders of queues for processes that share a state folder: the gateway, and commands that run an agent beside it.
 *
 * A process claims a lane by a file that names it. It writes the file first and looks for others after that, so that of two that
 * come at once neither has the lane. The lane of a process that is gone is anybody's.
 */
import { mkdir, readdir, unlink, writeFile } from "node:fs/promises";
import { join } from "node:path";

const OWNER = /^owner-(\d+)$/;
const LANE = /^lane-\d+$/;
const MAX_LANES = 16;

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
export async function claimLeft(root, own) {
  const found = [];
  for (const name of await readdir(root)) {
    const folder = join(root, name);
    if (LANE.test(name) && folder !== own && (await readdir(folder)).some((file) => file.endsWith(".jsonl")) && (await claimed(folder))) {
      found.push(folder);
    }
  }
  return found;
}

/** Give a lane up. */
export async function release(folder) {
  await unlink(join(folder, `owner-${process.pid}`)).catch(() => {});
}

async function claimed(folder) {
  await mkdir(folder, { recursive: true, mode: 0o700 });
  await writeFile(join(folder, `owner-${process.pid}`), "", { mode: 0o600 });
  for (const name of await readdir(folder)) {
    const pid = Number(OWNER.exec(name)?.[1] ?? process.pid);
    if (pid === process.pid) {
      continue;
    }
    if (isAlive(pid)) {
      await release(folder);
      return false;
    }
    await unlink(join(folder, name)).catch(() => {});
  }
  return true;
}

function isAlive(pid) {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error.code === "EPERM";
  }
}
