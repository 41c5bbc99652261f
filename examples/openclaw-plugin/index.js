/**
 * The plugin: OpenClaw's hooks, each told to the recorder and done with.
 *
 * No hook waits for a disk or a server, answers anything, or throws. Texts of conversations are looked at only where the user allowed
 * it (`plugins.entries.driftline.hooks.allowConversationAccess`): OpenClaw keeps `llm_output` and `agent_end` back otherwise, and the
 * plugin does not listen to transcripts then.
 */
import { SettingsError, isExposed, settingsOf } from "./lib/config.js";
import { currentPipeline, listenOnce, pipelineOf, stopCurrent } from "./lib/shared.js";

const ID = "driftline";

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
  const pipeline = pipelineOf(settings, api.logger);
  listen(api, settings);
  // Others are begun when they are told something: commands that list hooks register the plugin as well.
  if (api.registrationMode === undefined || api.registrationMode === "full") {
    pipeline.start();
  }
  return pipeline;
}

/** Tell the recorder what a hook or a transcript tells. Nothing is thrown, and nothing is answered. */
function guarded(api, settings, tell) {
  return (event, context) => {
    let pipeline = null;
    try {
      pipeline = currentPipeline(settings, api.logger);
      pipeline.start();
      tell(pipeline, event ?? {}, context ?? {});
    } catch (error) {
      pipeline?.fault(error);
    }
  };
}

function listen(api, settings) {
  const listenToTranscripts = () => listenOnce(api, () => subscribed(api, settings));
  for (const [hook, method] of Object.entries(HOOKS)) {
    api.on(hook, guarded(api, settings, (pipeline, event, context) => {
      // A registration that is told something is alive, however many came after it.
      listenToTranscripts();
      const session = pipeline.recorder[method](event, context);
      if (hook === "session_start" && session && pipeline.settings.heartbeatSeconds > 0) {
        setImmediate(() => pipeline.beat(session).catch((error) => pipeline.fault(error)));
      }
    }));
  }
  api.on("gateway_stop", () => stopCurrent());
  listenToTranscripts();
}

/** Listen to what is written to transcripts, where that is allowed; a function that ends it. */
function subscribed(api, settings) {
  const events = api.runtime?.events;
  if (!mayRead(api) || typeof events?.onSessionTranscriptUpdate !== "function") {
    return () => {};
  }
  const end = events.onSessionTranscriptUpdate(guarded(api, settings, (pipeline, update) => pipeline.recorder.transcribed(update)));
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

export default {
  id: ID,
  name: "Driftline",
  description: "Sends exchanges and runtime events to a Driftline server",
  register(api) {
    register(api);
  },
};
