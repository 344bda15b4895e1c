/** One websocket connection: it opens producers, sends their events, and passes them what the server answers. */
import { LOST_STATE_CODES } from "../errors.js";
import { keyOf } from "../producer.js";
import { Deferred } from "../waiting.js";

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
  socket.onerror = () => {}; // `ws` throws an error that nobody hears
  try {
    socket.close();
  } catch {
    // it was never open
  }
}
