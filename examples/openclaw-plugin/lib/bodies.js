/** Bodies of calls, within what the server takes: 512 KiB for an exchange, 4 MiB and 10 000 events for a batch. */
import { cutBytes } from "./texts.js";

export const MAX_EXCHANGE = 500 * 1024;
export const MAX_BATCH_BYTES = 3 * 1024 * 1024;
export const MAX_BATCH_EVENTS = 2000;
const MAX_TEXT = 150_000;
const MIN_TEXT = 1000;

/** What is posted of an exchange; texts that make it too large are cut, with the cut shown. */
export function exchangeBody(session, agent, exchange) {
  let limit = MAX_TEXT;
  for (;;) {
    const body = written(session, agent, exchange, limit);
    // Characters that JSON escapes take up to six times their room.
    if (limit <= MIN_TEXT || Buffer.byteLength(JSON.stringify(body)) <= MAX_EXCHANGE) {
      return body;
    }
    limit = Math.max(MIN_TEXT, Math.floor(limit / 2));
  }
}

/** What is posted of a batch of one session's events. */
export function eventsBody(session, agent, events) {
  return { session_id: session, ...(agent && { agent }), events };
}

function written(session, agent, exchange, limit) {
  const { id, at, asked, answer } = exchange;
  const thinking = answer.thinking.join("\n\n");
  const usage = answer.input === null && answer.output === null ? null : { input_tokens: answer.input, output_tokens: answer.output };
  return {
    session_id: session,
    ...(agent && { agent }),
    exchange: {
      id,
      timestamp: at,
      user_message: { content: cutBytes(asked, limit) },
      agent_response: {
        content: cutBytes(answer.content, limit),
        ...(thinking && { thinking: cutBytes(thinking, limit) }),
        ...(answer.model && { model: answer.model }),
        ...(answer.stop && { stop_reason: answer.stop }),
        ...(usage && { usage }),
      },
    },
  };
}
