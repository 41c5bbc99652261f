/** Calls of the Driftline server, and what their answers mean for what was sent. */

export const DONE = "done";
export const RETRY = "retry";
export const REFUSED = "refused";
/** Nothing that is sent now would be taken: the token is not let in, the name is not the server's, or it is no Driftline. */
export const SHUT = "shut";

const MAX_ANSWER = 1024 * 1024;
const MAX_PAUSE_MS = 10 * 60 * 1000;
const CLOSED = new Set([401, 403]);
const RETRIED = new Set([408, 425, 429]);

export class Client {
  /** `fetch` is the one of Node. */
  constructor(settings, call = fetch) {
    this._settings = settings;
    this._call = call;
  }

  /**
   * Post a body. Answers `{ outcome, status, code, reason, pauseMs, answer }`; nothing is thrown.
   *
   * Nothing is asked of another address: an answer that leads elsewhere is none of ours.
   */
  async post(path, body, stop) {
    const timeout = AbortSignal.timeout(this._settings.timeoutMs);
    try {
      const response = await this._call(this._settings.base + path, {
        method: "POST",
        redirect: "manual",
        headers: { authorization: `Bearer ${this._settings.token}`, "content-type": "application/json" },
        body: JSON.stringify(body),
        signal: stop ? AbortSignal.any([stop, timeout]) : timeout,
      });
      const text = (await response.text()).slice(0, MAX_ANSWER);
      return judged(response, parsed(text));
    } catch (error) {
      const reason = timeout.aborted ? `no answer within ${this._settings.timeoutMs} ms` : (error.cause?.code ?? error.cause?.message ?? error.name);
      return { outcome: RETRY, status: 0, reason: String(reason), pauseMs: 0 };
    }
  }
}

function judged(response, answer) {
  const { status } = response;
  const told = { status, code: answer?.code, reason: answer?.error ?? `HTTP ${status}`, answer, pauseMs: pauseOf(response) };
  if (response.ok) {
    return { ...told, outcome: DONE };
  }
  if (status >= 500 || RETRIED.has(status)) {
    return { ...told, outcome: RETRY };
  }
  const isRefusal = typeof answer?.code === "string" && !CLOSED.has(status) && answer.code !== "host_not_allowed";
  return { ...told, outcome: isRefusal ? REFUSED : SHUT };
}

/** Milliseconds that `Retry-After` asks for: a number of seconds, or a date. */
function pauseOf(response) {
  const given = response.headers.get("retry-after");
  if (!given) {
    return 0;
  }
  const milliseconds = /^\d+$/.test(given) ? Number(given) * 1000 : Date.parse(given) - Date.now();
  return Number.isFinite(milliseconds) ? Math.min(Math.max(milliseconds, 0), MAX_PAUSE_MS) : 0;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
