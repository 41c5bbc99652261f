/**
 * Settings: from the plugin's configuration, else from the environment, else the defaults of the manifest.
 *
 * OpenClaw checks the configuration against the manifest before the plugin is loaded. What is checked here is what a schema
 * cannot say, and what an environment can hold.
 */
import { readFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";

const MANIFEST = JSON.parse(readFileSync(new URL("../openclaw.plugin.json", import.meta.url), "utf8"));

/** The fields of the configuration with their schemas, by name. */
export const FIELDS = MANIFEST.configSchema.properties;

/** Names of environment variables that stand in for fields. */
export const ENVIRONMENT = { url: "DRIFTLINE_URL", token: "DRIFTLINE_TOKEN" };

const LOOPBACK = new Set(["localhost", "127.0.0.1", "[::1]"]);

/** Something about the settings keeps the plugin from sending; the message names the field and never its value. */
export class SettingsError extends Error {}

/**
 * The settings, frozen. `stateDir` is OpenClaw's folder for state.
 *
 * Throws SettingsError when the address or the token is missing or cannot be used.
 */
export function settingsOf(config, environment, stateDir) {
  const given = { ...config };
  for (const [field, name] of Object.entries(ENVIRONMENT)) {
    // A variable that OpenClaw does not find stays in its place as it was written.
    given[field] = (isUnresolved(given[field]) ? undefined : given[field]) ?? environment[name];
  }
  for (const [field, schema] of Object.entries(FIELDS)) {
    given[field] ??= schema.default;
  }
  return Object.freeze({
    ...given,
    base: baseOf(given.url),
    token: tokenOf(given.token),
    queueDir: given.queueDir ?? join(stateDir ?? defaultStateDir(environment), "driftline"),
    queueMaxBytes: Math.floor(given.queueMaxMiB * 1024 * 1024),
    agents: given.agents?.length ? new Set(given.agents) : null,
  });
}

/** Whether the token would cross a network in the clear. */
export function isExposed(settings) {
  const url = new URL(settings.base);
  return url.protocol === "http:" && !LOOPBACK.has(url.hostname);
}

function isUnresolved(value) {
  return typeof value === "string" && /^\$\{\w+\}$/.test(value.trim());
}

function baseOf(given) {
  if (typeof given !== "string" || !given.trim()) {
    throw new SettingsError(`url: is missing; set it in the plugin's configuration, or ${ENVIRONMENT.url}`);
  }
  let url;
  try {
    url = new URL(given.trim());
  } catch {
    throw new SettingsError("url: is not an address; write it as http://127.0.0.1:8377");
  }
  if (!["http:", "https:"].includes(url.protocol)) {
    throw new SettingsError("url: begins with neither http:// nor https://");
  }
  if (url.username || url.password || url.search || url.hash) {
    throw new SettingsError("url: holds more than host, port and path; the token has a field of its own");
  }
  return url.href.replace(/\/+$/, "");
}

function tokenOf(given) {
  const token = typeof given === "string" ? given.trim() : "";
  if (!token) {
    throw new SettingsError(`token: is missing; set it in the plugin's configuration, or ${ENVIRONMENT.token}`);
  }
  if (!/^[\x21-\x7e]+$/.test(token)) {
    throw new SettingsError("token: holds characters that no token has");
  }
  return token;
}

function defaultStateDir(environment) {
  return environment.OPENCLAW_STATE_DIR || join(homedir(), ".openclaw");
}
