/**
 * A client for producers and backends. It buffers, resends and resumes, so that no event is lost or stored twice.
 *
 *     const client = new Client("ws://127.0.0.1:8765", { restUrl: "http://127.0.0.1:8080" });
 *     const session = client.session("call-1");
 *     await session.record({ type: "asr", turn_id: 1, text: "Hi", final: true }); // it is on disk
 *     await session.end({ reason: "hangup" });
 *     await client.close();
 *
 * See docs/client-javascript.md.
 */
export { Ack } from "./buffer.js";
export { Client } from "./client.js";
export {
  BufferFull,
  ClientError,
  Closed,
  EventRefused,
  RequestRefused,
  SessionEnded,
  SessionErased,
  Superseded,
  TimedOut,
  Unacknowledged,
  Unreachable,
} from "./errors.js";
export { Session } from "./session.js";
