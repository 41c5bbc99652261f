/**
 * The plugin: OpenClaw's hooks, each told to the recorder and done with.
 *
 * No hook waits for a disk or a server, answers anything, or throws. Texts of conversations are looked at only where the user allowed
 * it (`plugins.entries.driftline.hooks.allowConversationAccess`): OpenClaw keeps `llm_output` and `agent_end` back otherwise, and the
 * plugin does not listen to transcripts then.
 */
import { isDeepStrictEqual } from "node:util";

import { SettingsError, isExposed, settingsOf } from "./lib/config.js";
import { Pipeline } from "./lib/pipeline.js";

const ID = "driftline";
/** Pipelines of this process by folder: OpenClaw may register a plugin again, and a lane has one owner. */
const PIPELINES = Symbol.for("driftline.openclaw.pipelines");

/** Hooks of OpenClaw, and what of the recorder each is told to. */
export const HOOKS = {
  session_start: "sessionStart",
  session_end: "sessionEnd",
  before_tool_call: "beforeToolCall",
  after_tool_call: "afterToolCall",
  llm_output: "llmOutput",
  agent_end: "agentEnd",
  before_compaction: "beforeCompaction",
  after_compaction: "afterCompaction",
};

/** Register with OpenClaw; answers the pipeline, or null where there is none. */
export function register(api) {
  let settings;
  try {
    settings = settingsOf(api.pluginConfig ?? {}, process.env, stateDirOf(api));
  } catch (error) {
    if (!(error instanceof SettingsError)) {
      throw error;
    }
    api.logger.error(`driftline: sends nothing. ${error.message}`);
    return null;
  }
  if (isExposed(settings)) {
    api.logger.warn("driftline: url is http:// to another machine: the token and the conversations cross the network in the clear");
  }
  // Commands that only look at plugins, to list their hooks, register them as well.
  const isLive = api.registrationMode === undefined || api.registrationMode === "full";
  const pipeline = isLive ? pipelineOf(settings, api.logger) : new Pipeline(settings, api.logger);
  listen(api, pipeline);
  pipeline.unsubscribe();
  pipeline.unsubscribe = subscribed(api, pipeline);
  if (isLive) {
    pipeline.start();
  }
  return pipeline;
}

function guardedBy(pipeline) {
  return (tell) => (event, context) => {
    try {
      pipeline.start();
      tell(event ?? {}, context ?? {});
    } catch (error) {
      pipeline.fault(error);
    }
  };
}

function listen(api, pipeline) {
  const { recorder } = pipeline;
  const guarded = guardedBy(pipeline);
  for (const [hook, method] of Object.entries(HOOKS)) {
    api.on(hook, guarded((event, context) => {
      const session = recorder[method](event, context);
      if (hook === "session_start" && session && pipeline.settings.heartbeatSeconds > 0) {
        setImmediate(() => pipeline.beat(session).catch((error) => pipeline.fault(error)));
      }
    }));
  }
  api.on("gateway_stop", async () => {
    forget(pipeline);
    await pipeline.stop().catch((error) => pipeline.fault(error));
  });
}

/** Listen to what is written to transcripts, where that is allowed; a function that ends it. */
function subscribed(api, pipeline) {
  const events = api.runtime?.events;
  if (!mayRead(api) || typeof events?.onSessionTranscriptUpdate !== "function") {
    return () => {};
  }
  const end = events.onSessionTranscriptUpdate(guardedBy(pipeline)((update) => pipeline.recorder.transcribed(update)));
  return typeof end === "function" ? end : () => {};
}

function mayRead(api) {
  return api.config?.plugins?.entries?.[ID]?.hooks?.allowConversationAccess === true;
}

function stateDirOf(api) {
  try {
    return api.runtime?.state?.resolveStateDir?.();
  } catch {
    return undefined;
  }
}

/** The pipeline of a folder: the one that there is goes on, with all that it knows of sessions, unless the settings are others. */
function pipelineOf(settings, log) {
  const known = (globalThis[PIPELINES] ??= watched(new Map()));
  const before = known.get(settings.queueDir);
  if (before && isDeepStrictEqual(before.settings, settings)) {
    return before;
  }
  const pipeline = new Pipeline(settings, log, before);
  known.set(settings.queueDir, pipeline);
  return pipeline;
}

/** A command ends its process without a word to plugins: what was recorded is kept then. */
function watched(known) {
  process.on("exit", () => known.forEach((pipeline) => pipeline.keepNow()));
  return known;
}

function forget(pipeline) {
  const known = globalThis[PIPELINES];
  if (known?.get(pipeline.settings.queueDir) === pipeline) {
    known.delete(pipeline.settings.queueDir);
  }
}

export default {
  id: ID,
  name: "Driftline",
  description: "Sends exchanges and runtime events to a Driftline server",
  register(api) {
    register(api);
  },
};
