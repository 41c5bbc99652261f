/** Records of the queue as calls of the server: events of one session together, and every session in its order. */
import { MAX_BATCH_BYTES, MAX_BATCH_EVENTS, eventsBody } from "./bodies.js";

/** The calls for a window of records, in order; each has `path`, `body` and the number of records it stands for. */
export function callsOf(records) {
  const calls = [];
  const open = new Map();
  for (const record of records) {
    if (record.k === "event") {
      gather(calls, open, record);
    } else {
      open.delete(record.s);
      calls.push(record.k === "exchange" ? exchangeCall(record) : endCall(record));
    }
  }
  return calls.map((call) => (call.kind === "events" ? { ...call, body: eventsBody(call.session, call.agent, call.events) } : call));
}

function gather(calls, open, { s: session, a: agent, b: event }) {
  const size = Buffer.byteLength(JSON.stringify(event));
  let call = open.get(session);
  const isFull = call && (call.events.length >= MAX_BATCH_EVENTS || call.bytes + size > MAX_BATCH_BYTES);
  if (!call || isFull || call.agent !== agent || call.ids.has(event.event_id)) {
    call = { kind: "events", path: "/api/audit/events", session, agent, events: [], ids: new Set(), bytes: 0, records: 0 };
    open.set(session, call);
    calls.push(call);
  }
  call.events.push(event);
  call.ids.add(event.event_id);
  call.bytes += size;
  call.records += 1;
}

function exchangeCall({ s: session, b: body }) {
  return { kind: "exchange", path: "/api/audit/ingest", session, body, records: 1 };
}

function endCall({ s: session }) {
  // Slashes stay as they are; the server takes the rest of the path for the id.
  const path = session.split("/").map(encodeURIComponent).join("/");
  return { kind: "end", path: `/api/audit/sessions/${path}/finalize`, session, body: {}, records: 1 };
}
