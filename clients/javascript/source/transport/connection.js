/** A websocket connection: how it is made, the events of producers that it sends, and the answers that it gives them. */
import {
  Blocked,
  LOST_STATE_CODES,
  NotUpgraded,
  RequestRefused,
  Unreachable,
  isTransient,
  passingError,
  seconds,
} from "../errors.js";
import { keyOf } from "../producer.js";
import { Deferred } from "../waiting.js";
import { HTTP_STATUS, REFUSED_BY_SOCKET, TIMED_OUT, displayUrl, isNode, unreachable } from "./failures.js";

/** @typedef {import("../producer.js").Producer} Producer */
/** @typedef {import("../producer.js").ServerFrame} ServerFrame */

/** Events that wait together share a frame of up to this size; small, so that acks come often on a slow network. */
export const FRAME_BYTES = 16 * 1024;
/** While so much waits in the socket, nothing more is put into it: the buffer is the client's, and bounded. */
const MAX_IN_SOCKET = 64 * 1024;
/** How often a full socket is looked at; a browser does not say when it has room. */
const LOOK_AGAIN_MS = 20;

/**
 * How a connection ended. `code` and `detail` are those of the server's last error, if it sent one.
 * @typedef {{closeCode: number, code: string, detail: string}} Disconnect
 */

export class WebsocketConnection {
  /**
   * @param {import("../options.js").Socket} socket it is open
   * @param {Map<string, Producer>} producers the client's, by `keyOf`
   * @param {import("../options.js").Options} options
   * @param {number} [frameBytes]
   * @param {() => void} [onProgress] called whenever a producer is opened or an event acknowledged
   */
  constructor(socket, producers, options, frameBytes = FRAME_BYTES, onProgress = () => {}) {
    this.socket = socket;
    this.producers = producers;
    this.options = options;
    /** Size limit of a frame, at present; each ack doubles it, up to `FRAME_BYTES`. */
    this.frameBytes = frameBytes;
    this.onProgress = onProgress;
    /** @type {Producer[]} Producers whose `session.open` is to be sent. */
    this.toOpen = [];
    /** @type {Set<Producer>} Producers whose `session.open` is not answered yet. */
    this.opening = new Set();
    /** @type {Set<Producer>} Producers that the server has opened on this connection. */
    this.open = new Set();
    /** @type {Set<Producer>} Open producers with something to send, in turn. */
    this.toSend = new Set();
    /** Whether a producer was opened, or an event acknowledged. */
    this.madeProgress = false;
    this.acked = false;
    /** Whether the server is about to close; it reads nothing more. */
    this.serverLeaving = false;
    /** @type {ServerFrame | null} The last error about the connection as a whole. */
    this.connectionError = null;
    /** Whether the server has said that it takes events more slowly. */
    this.isOverRate = false;
    this.heardAt = Date.now();
    /** @type {any} */
    this.lookingAgain = null;
    /** @type {Deferred<Disconnect>} */
    this.ended = new Deferred();
    this.watching = setInterval(() => this.watch(), options.silenceMs / 4);
    socket.onmessage = (message) => this.onMessage(message.data);
    socket.onerror = () => this.end(1006, "");
    socket.onclose = (close) => this.end(close.code, close.reason);
  }

  // What producers ask for

  /** @param {Producer} producer */
  openProducer(producer) {
    this.open.delete(producer);
    this.toOpen.push(producer);
    this.pump();
  }

  /**
   * Send the events of a producer when its turn comes.
   * @param {Producer} producer
   */
  schedule(producer) {
    if (!producer.buffer.hasUnsent || !this.open.has(producer)) return;
    this.toSend.add(producer);
    this.pump();
  }

  /** @param {Producer} producer */
  remove(producer) {
    this.open.delete(producer);
    this.opening.delete(producer);
    this.toSend.delete(producer);
  }

  /**
   * Show the server another key or token.
   * @param {string} key
   */
  authenticate(key) {
    if (!this.ended.settled) this.socket.send(JSON.stringify({ type: "auth", token: key }));
  }

  // The life of a connection

  /**
   * Wait until the connection has ended.
   * @param {AbortSignal} signal ends it
   */
  async run(signal) {
    const abort = () => this.end(1000, "");
    signal.addEventListener("abort", abort);
    if (signal.aborted) abort();
    try {
      return await this.ended.promise;
    } finally {
      signal.removeEventListener("abort", abort);
    }
  }

  /**
   * Leave the socket, whether it knows of its end already or not.
   * @param {number} closeCode
   * @param {string} reason
   */
  end(closeCode, reason) {
    if (this.ended.settled) return;
    clearInterval(this.watching);
    clearTimeout(this.lookingAgain);
    hangUp(this.socket);
    const code = this.serverLeaving ? 1012 : (closeCode ?? 1006);
    const error = this.connectionError;
    const detail = error === null ? "The connection was lost." : (error.detail ?? "");
    this.ended.resolve({ closeCode: code, code: error === null ? (reason ?? "") : (error.code ?? ""), detail });
  }

  /** JavaScript's websockets cannot ping: end the connection when an answer that is due does not come. */
  watch() {
    const isWaiting = this.opening.size > 0 || [...this.open].some((producer) => producer.buffer.hasSent);
    if (!isWaiting) this.heardAt = Date.now();
    else if (Date.now() - this.heardAt > this.options.silenceMs) this.end(1006, "");
  }

  /** Size limit for the next connection: smaller if no event got through, down to single events. */
  nextFrameBytes() {
    return this.acked ? this.frameBytes : Math.max(1, Math.floor(this.frameBytes / 4));
  }

  // Sending

  /** Send what waits, as long as the socket takes it. Only here does a slow network hold the client back. */
  pump() {
    while ((this.toOpen.length || this.toSend.size) && !this.serverLeaving && !this.ended.settled) {
      if (this.socket.bufferedAmount > MAX_IN_SOCKET) {
        this.lookAgain();
        return;
      }
      this.sendNext();
    }
  }

  lookAgain() {
    if (this.lookingAgain !== null) return;
    this.lookingAgain = setTimeout(() => {
      this.lookingAgain = null;
      this.pump();
    }, LOOK_AGAIN_MS);
  }

  /** Send one frame: an open, or events of the producer whose turn it is. */
  sendNext() {
    const opened = this.toOpen.shift();
    if (opened !== undefined) {
      // its open may have been given up
      if (opened.finished || this.producers.get(opened.key) !== opened) return;
      this.opening.add(opened);
      this.socket.send(JSON.stringify(opened.openFrame()));
      return;
    }
    const [producer] = this.toSend;
    this.toSend.delete(producer);
    const batch = producer.buffer.takeBatch(this.frameBytes);
    if (producer.buffer.hasUnsent) this.toSend.add(producer);
    if (batch.length) this.socket.send(encodeBatch(batch));
  }

  // What the server says

  /** @param {unknown} data */
  onMessage(data) {
    if (this.ended.settled) return;
    this.heardAt = Date.now();
    const frame = decodeFrame(data);
    if (frame === null) {
      const detail = "The answer is not a frame of voicemem.v1.";
      this.connectionError = { type: "error", code: "not_voicemem", detail };
      this.end(1006, "");
    } else {
      this.onFrame(frame);
    }
  }

  /** @param {ServerFrame} frame */
  onFrame(frame) {
    const producer = this.producers.get(keyOf(frame.session_id ?? "", frame.producer ?? ""));
    if (frame.type === "goaway") this.serverLeaving = true;
    else if (frame.code === "rate_limited") this.noteRate(frame);
    else if (frame.type === "error" && (producer === undefined || LOST_STATE_CODES.has(frame.code ?? ""))) {
      this.onConnectionError(frame);
    } else if (producer === undefined) return;
    else if (frame.type === "session.ready") this.onReady(producer, frame);
    else if (frame.type === "ack" && frame.seq != null) this.onAck(producer, frame.seq);
    else if (frame.type === "error") this.onError(producer, frame);
  }

  /**
   * @param {Producer} producer
   * @param {ServerFrame} frame
   */
  onReady(producer, frame) {
    this.noteProgress();
    this.opening.delete(producer);
    producer.onReady(frame);
    if (producer.finished) return;
    this.open.add(producer);
    this.schedule(producer);
  }

  /**
   * @param {Producer} producer
   * @param {number} seq
   */
  onAck(producer, seq) {
    this.acked = true;
    this.noteProgress();
    this.frameBytes = Math.min(FRAME_BYTES, 2 * this.frameBytes);
    producer.onAck(seq);
    this.pump();
  }

  /**
   * Say once that the key is over its rate. Nothing is lost: the server resumes reading by itself.
   * @param {ServerFrame} frame
   */
  noteRate(frame) {
    if (!this.isOverRate) this.options.warn(`rate_limited: ${frame.detail ?? ""}`);
    this.isOverRate = true;
  }

  noteProgress() {
    this.madeProgress = true;
    this.onProgress();
  }

  /**
   * @param {Producer} producer
   * @param {ServerFrame} frame
   */
  onError(producer, frame) {
    this.opening.delete(producer);
    if (producer.onError(frame)) this.openProducer(producer);
    else this.schedule(producer);
  }

  /** @param {ServerFrame} frame */
  onConnectionError(frame) {
    this.connectionError = frame;
    if (LOST_STATE_CODES.has(frame.code ?? "")) this.end(1006, "");
  }
}

/**
 * One event as it is, several as a JSON array.
 * @param {import("../buffer.js").Ack[]} batch
 */
export function encodeBatch(batch) {
  return batch.length === 1 ? batch[0].payload : `[${batch.map((ack) => ack.payload).join(",")}]`;
}

/**
 * A frame of the server; null for what is not one.
 * @param {unknown} data
 * @returns {ServerFrame | null}
 */
function decodeFrame(data) {
  try {
    const frame = JSON.parse(/** @type {string} */ (data));
    return typeof frame?.type === "string" ? frame : null;
  } catch {
    return null;
  }
}

/**
 * Close a socket, and hear nothing more of it. Nobody waits for the peer, which may be long gone.
 * @param {import("../options.js").Socket} socket
 */
export function hangUp(socket) {
  socket.onopen = socket.onmessage = socket.onclose = null;
  socket.onerror = () => {}; // `ws` throws an error that no one hears
  try {
    socket.close();
  } catch {
    // it was never open
  }
}

const PATH = "/v1/ingest";
/** Of a path that has no websocket for this request, although voicemem answers it. */
const UPGRADE_REQUIRED = 426;

/**
 * A new connection. Throws `Unreachable`, `Blocked`, and `RequestRefused` if trying again is useless.
 * @param {string} url
 * @param {import("../options.js").Options} options
 * @param {AbortSignal} signal
 * @returns {Promise<import("../options.js").Socket>}
 */
export async function dial(url, options, signal) {
  const { WebSocket: Constructor } = options;
  if (Constructor === undefined) throw new Error("there is no WebSocket here"); // `Client` checks it
  const socket = new Constructor(url);
  const failure = await opened(socket, url, options.connectTimeoutMs, signal);
  if (failure === null) return socket;
  hangUp(socket);
  throw signal.aborted || !isNode() ? failure : await explained(failure, url, options);
}

/**
 * Wait until a socket is open; why it is not, otherwise.
 * @param {import("../options.js").Socket} socket
 * @param {string} url
 * @param {number} timeoutMs
 * @param {AbortSignal} signal
 * @returns {Promise<Unreachable | null>}
 */
function opened(socket, url, timeoutMs, signal) {
  return new Promise((resolve) => {
    /** @param {string | null} reason */
    const end = (reason) => {
      clearTimeout(timer);
      signal.removeEventListener("abort", abort);
      resolve(reason === null ? null : new Unreachable(`${displayUrl(url)}: ${reason}.`, reason));
    };
    const abort = () => end("the client was closed");
    const timer = setTimeout(() => end(`${TIMED_OUT} after ${seconds(timeoutMs)}`), timeoutMs);
    signal.addEventListener("abort", abort);
    socket.onopen = () => end(null);
    socket.onerror = () => end(REFUSED_BY_SOCKET);
    socket.onclose = () => end(REFUSED_BY_SOCKET);
  });
}

/**
 * Why a socket failed, found by a request to the same address: sockets of JavaScript do not say.
 * @param {Unreachable} failure
 * @param {string} url
 * @param {import("../options.js").Options} options
 * @returns {Promise<Error>}
 */
async function explained(failure, url, options) {
  if (!failure.reason.startsWith(REFUSED_BY_SOCKET)) return failure;
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(), options.connectTimeoutMs);
  try {
    const address = displayUrl(url).replace(/^ws/, "http");
    const response = await options.fetch(address, { redirect: "manual", signal: abort.signal });
    return handshakeError(url, response.status, await response.text());
  } catch (error) {
    return unreachable(url, error, options.connectTimeoutMs);
  } finally {
    clearTimeout(timer);
  }
}

/**
 * The URL of the ingest, with its path. Throws `TypeError` unless it is a websocket URL.
 * @param {string} url
 */
export function withPath(url) {
  const parts = URL.canParse(url) ? new URL(url) : null;
  if (parts === null || !["ws:", "wss:"].includes(parts.protocol) || parts.port === "0") {
    throw new TypeError("the ingest URL must begin with ws:// or wss:// and a host");
  }
  if (!parts.pathname.replaceAll("/", "")) parts.pathname = PATH;
  return parts.href;
}

/**
 * The error for an answer that is not an upgrade to a websocket.
 * @param {string} url
 * @param {number} status
 * @param {string} body
 * @returns {Error}
 */
export function handshakeError(url, status, body) {
  const problem = problemOf(body);
  const code = String(problem.reason ?? "");
  const detail = String(problem.detail ?? "this is not voicemem's answer");
  if (status >= 500 || isTransient(code, status)) return passingError(displayUrl(url), code, status, detail);
  const isOurs = String(problem.type ?? "").startsWith("urn:voicemem:");
  const reason = `${HTTP_STATUS} ${status}: ${detail}`;
  if (isOurs && status === UPGRADE_REQUIRED) return new NotUpgraded(reason, reason);
  return isOurs ? new RequestRefused(code, detail, status) : new Blocked(reason, reason);
}

/**
 * @param {string} body
 * @returns {Record<string, unknown>}
 */
function problemOf(body) {
  try {
    return Object(JSON.parse(body));
  } catch {
    return {};
  }
}
