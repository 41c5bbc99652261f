/**
 * What all registrations of the plugin in one process share: one pipeline, whatever OpenClaw registers and however often.
 *
 * 1. OpenClaw registers a plugin more than once in a process, each time from a copy of its files: 2026.9 once as `full` when it starts,
 *    and as `discovery` for the runs of agents, whose hooks are called. `gateway_stop` comes to the first, `agent_end` to another one.
 *    Modules are loaded anew each time, so what is shared hangs on the process and not on a module.
 * 2. Whichever registration is told something tells the same pipeline. Only a `full` registration starts it by itself; the others start
 *    it when they are told something, so that a command that merely lists hooks touches no disk.
 * 3. Every registration listens to transcripts, because none is sure to outlive the others; the recorder takes each entry once.
 * 4. With other settings, or another version of the plugin, a new pipeline follows the old one: it begins when the old one has let go
 *    of its lane, and goes on with what the old one knows of the sessions under way.
 */
import { setTimeout as pause } from "node:timers/promises";
import { isDeepStrictEqual } from "node:util";

import { Pipeline, VERSION } from "./pipeline.js";

const KEY = Symbol.for("driftline.openclaw.process");
/** How long a host is kept waiting when it stops: OpenClaw 2026.9 gives a plugin 5 s. */
const PATIENCE_MS = 3000;
const LATE = Symbol("late");
/** Registrations that listen to transcripts; older ones are those of configurations that were replaced. */
const MAX_LISTENERS = 8;

/** What is shared in this process. */
export function shared() {
  globalThis[KEY] ??= opened();
  return globalThis[KEY];
}

/** The pipeline for these settings, as the current one of the process. */
export function pipelineOf(settings, log) {
  const known = shared();
  const before = known.current;
  if (before && before.version === VERSION && isDeepStrictEqual(before.settings, settings)) {
    before.log.use(log);
    return before;
  }
  return following(known, before, settings, log);
}

/** The pipeline that is told what comes now: the current one, or a new one where that was stopped. */
export function currentPipeline(settings, log) {
  const known = shared();
  return known.current ?? following(known, known.stopped, settings, log);
}

/**
 * Stop the current pipeline; what comes later begins a new one.
 *
 * A host that waited longer than PATIENCE_MS would retire the plugin by force: what was recorded is on disk by then, and a slow disk or a
 * starved process goes on letting go of the lane in the background.
 */
export async function stopCurrent(patience = PATIENCE_MS) {
  const known = shared();
  const { current } = known;
  known.current = null;
  known.stopped = current ?? known.stopped;
  const stopped = current?.stop().catch((error) => current.fault(error));
  const timer = new AbortController();
  const tired = pause(patience, LATE, { signal: timer.signal, ref: false }).catch(() => null);
  try {
    if ((await Promise.race([stopped, tired])) === LATE) {
      current.keepNow();
    }
  } catch (error) {
    current.fault(error);
  } finally {
    timer.abort();
  }
}

/** Have a registration listen to transcripts: `subscribe` begins it and answers a function that ends it. */
export function listenOnce(registration, subscribe) {
  const { listening } = shared();
  if (listening.has(registration)) {
    return;
  }
  listening.set(registration, subscribe());
  while (listening.size > MAX_LISTENERS) {
    const [oldest, end] = listening.entries().next().value;
    listening.delete(oldest);
    end();
  }
}

function following(known, before, settings, log) {
  const pipeline = new Pipeline(settings, log, before);
  known.open.forEach((one) => one.isStopped && known.open.delete(one));
  known.current = pipeline;
  known.open.add(pipeline);
  return pipeline;
}

function opened() {
  const known = { current: null, stopped: null, open: new Set(), listening: new Map() };
  // A command ends its process without a word to plugins: what was recorded is kept then. OpenClaw has as many listeners of its own as
  // Node allows without a warning; ours is one more, on purpose.
  const most = process.getMaxListeners();
  process.setMaxListeners(most && most + 1);
  process.on("exit", () => known.open.forEach((pipeline) => pipeline.keepNow()));
  return known;
}
