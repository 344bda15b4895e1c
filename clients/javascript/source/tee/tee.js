/**
 * One line around a connection to another voice stack: a copy of each of its frames goes to the memory.
 *
 *     tee(socket, client, { sessionId: "call-1", dialect: "openai-realtime" });
 *     tee.phone(socket, client, { sessionId: "call-1" });
 *
 * Connections are sockets of `ws` and of browsers, data channels of WebRTC, and those of openai's SDK; none of these
 * is imported here. See docs/tee.md.
 */

import { Client } from "../client.js";
import { dialectNamed } from "../dialects/registry.js";
import { TWILIO_MEDIA_STREAMS } from "../dialects/twilio-media-streams.js";
import { checkNames } from "../options.js";
import { CallMemory } from "./memory.js";
import { certainDialect, wrap } from "./sockets.js";

export { CallMemory };

/**
 * @typedef {object} TeeOptions
 * @property {string} [sessionId] the id of the call; without it the vendor's own is taken
 * @property {string} [dialect] the name of the stack; it may be missing for a connection of openai's SDK only
 * @property {"app" | "vendor"} [side] who this program is: `app` receives what the vendor sends, also where it is the
 *   vendor who connects
 * @property {import("../key.js").Key} [key] with a URL: the key, or in a browser a session token
 * @property {string} [restUrl] with a URL: the REST API that `context` reads from
 * @property {import("../options.js").SocketConstructor} [WebSocket] with a URL, where the platform has none
 * @property {{[name: string]: any}} [config] the configuration of a new session
 * @property {string} [userId] its user
 * @property {string} [producer] the name under which the frames are sent; the dialect's without it
 * @property {boolean} [keepTyped] false leaves out texts that the app adds
 * @property {boolean} [end] false leaves the session open when the connection has ended
 */

const SESSION_ID = /^(?!\.\.?$)[A-Za-z0-9._:-]{1,128}$/;
const OPTIONS = ["sessionId", "dialect", "side", "key", "restUrl", "WebSocket", "config", "userId", "producer", "keepTyped", "end"];
const MEMORIES = /** @type {WeakMap<object, CallMemory>} */ (new WeakMap());

/**
 * Send a copy of all frames of a connection, in both directions, to the memory; returns the same connection.
 *
 * `client` is one for all calls, or the URL of the ingest. Afterwards nothing throws into the call, or holds it up.
 * Throws `TypeError` for what is not such a connection, or has a tee; for a dialect, id, name, URL or key that cannot be.
 *
 * @template {object} Connection
 * @param {Connection} connection
 * @param {Client | string} client
 * @param {TeeOptions} [options]
 * @returns {Connection}
 */
export function tee(connection, client, options = {}) {
  checkNames(options, OPTIONS);
  const { sessionId, side = "app", key, restUrl, userId, keepTyped = true, end = true } = options;
  const config = userId === undefined ? options.config : { ...options.config, user_id: userId };
  const dialect = dialectNamed(options.dialect ?? certainDialect(connection));
  const { producer = dialect.name } = options;
  if (sessionId !== undefined && !SESSION_ID.test(sessionId)) {
    throw new TypeError("a session id must be 1 to 128 characters of A-Za-z0-9._:-, but not . or ..");
  }
  if (typeof producer !== "string" || producer.length < 1 || producer.length > 128) {
    throw new TypeError("a producer's name must be 1 to 128 characters long");
  }
  if (side !== "app" && side !== "vendor") {
    throw new TypeError("side must be app or vendor: who this program is");
  }
  if (MEMORIES.has(connection)) {
    throw new TypeError("this connection has a tee already");
  }
  const isOwn = typeof client === "string";
  if (!isOwn && (key !== undefined || restUrl !== undefined || options.WebSocket !== undefined)) {
    throw new TypeError("key, restUrl and WebSocket go with a URL; a client has its own");
  }
  const WebSocket = options.WebSocket ?? globalThis.WebSocket ?? socketClassOf(connection);
  const used = isOwn ? new Client(client, { restUrl, key, WebSocket }) : client;
  const given = { isOwn, dialect, sessionId, side, producer, config, keepTyped, ends: end };
  /** @type {CallMemory | undefined} */
  let memory;
  wrap(connection, {
    received: (data) => memory?.received(data),
    sent: (data) => memory?.sent(data),
    closed: (isClean, byApp) => memory?.closed(isClean, byApp),
    failed: (error) => memory?.failed(error),
  });
  memory = new CallMemory({ client: used, ...given });
  MEMORIES.set(connection, memory);
  return connection;
}

/**
 * Send how far a phone has played the agent's audio to the memory; returns the same connection.
 *
 * The connection is that of the phone's media stream (Twilio, SignalWire, Telnyx, Plivo, Vonage). In place of a client,
 * the memory of another connection of the call may be given. All else is as with `tee`.
 *
 * @template {object} Connection
 * @param {Connection} connection
 * @param {Client | string | CallMemory} client
 * @param {Omit<TeeOptions, "dialect">} [options]
 * @returns {Connection}
 */
tee.phone = function phone(connection, client, options = {}) {
  const dialect = TWILIO_MEDIA_STREAMS.name;
  if (!(client instanceof CallMemory)) {
    return tee(connection, client, { ...options, dialect });
  }
  const { sessionId } = client;
  if (sessionId === null) {
    throw new TypeError("the session of this memory has no id yet: give both connections a sessionId");
  }
  return tee(connection, client.client, { ...options, sessionId, dialect });
};

/**
 * The memory of a connection that `tee` has returned. Throws `TypeError` for any other.
 *
 * @param {object} connection
 * @returns {CallMemory}
 */
export function memoryOf(connection) {
  const memory = MEMORIES.get(connection);
  if (memory === undefined) {
    throw new TypeError("this connection has no memory: tee(connection, …) gives it one");
  }
  return memory;
}

/**
 * The class of a connection of `ws`, for a Node that has no WebSocket of its own.
 *
 * @param {any} connection
 * @returns {any}
 */
function socketClassOf(connection) {
  const made = (connection.socket ?? connection).constructor;
  return made?.name === "WebSocket" ? made : undefined;
}
