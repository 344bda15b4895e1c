/** Events over HTTP while the websocket cannot be reached: the same producers, the same acks. */
import {
  Busy,
  CLIENT_FATAL_STATUSES,
  RequestRefused,
  SessionErased,
  Unreachable,
  isTransient,
  passingError,
} from "../errors.js";
import { Backoff } from "../options.js";
import { Deferred, sleep } from "../waiting.js";
import { displayUrl } from "./failures.js";
import { sessionPath } from "./rest.js";

/** @typedef {import("../producer.js").Producer} Producer */
/** @typedef {import("../producer.js").ServerFrame} ServerFrame */
/** @typedef {import("../buffer.js").Ack} Ack */

/** Events that wait together share a request body of up to this size. */
const BODY_BYTES = 256 * 1024;
/** Producers whose events are posted at the same time. */
const MAX_CONCURRENT_POSTS = 8;

/** Posts the events of producers. */
export class HttpFallback {
  /**
   * @param {import("./rest.js").RestClient} rest
   * @param {import("../options.js").Options} options
   * @param {() => void} onAnswer called whenever the server answers
   * @param {(error: Unreachable) => void} onFailure called when it does not; what that throws ends `run`
   */
  constructor(rest, options, onAnswer, onFailure) {
    this.rest = rest;
    this.backoff = new Backoff(options);
    this.awayDelayMs = options.awayDelayMs;
    this.onAnswer = onAnswer;
    this.onFailure = onFailure;
    /** @type {Set<Producer>} Producers to open or with something to send, in the order in which they came. */
    this.pending = new Set();
    /** @type {Set<Producer>} Those that no longer have what the server expects next, and declare that. */
    this.declaring = new Set();
    /** @type {Set<Producer>} Producers that only an open over a websocket can bring back. */
    this.blocked = new Set();
    /** @type {Deferred<void>} */
    this.wake = new Deferred();
    /** Ends the requests under way. */
    this.cutting = new AbortController();
  }

  /** @param {Producer} producer */
  openProducer(producer) {
    this.schedule(producer);
  }

  /** @param {Producer} producer */
  schedule(producer) {
    if (this.blocked.has(producer)) return;
    this.pending.add(producer);
    this.wake.resolve();
  }

  /** @param {Producer} producer */
  remove(producer) {
    this.pending.delete(producer);
  }

  /**
   * Post until `stopping`, then finish the requests under way. Throws `ClientError`.
   * @param {AbortSignal} stopping
   */
  async run(stopping) {
    stopping.addEventListener("abort", () => this.wake.resolve());
    while (!stopping.aborted) {
      await this.wake.promise;
      this.wake = new Deferred();
      if (!stopping.aborted && this.pending.size) await this.postRound(stopping);
    }
  }

  /**
   * Post once for each pending producer; pause after a failure.
   * @param {AbortSignal} stopping
   */
  async postRound(stopping) {
    const producers = [...this.pending];
    this.pending.clear();
    /** @type {Unreachable | null} */
    let lost = null;
    const waiting = producers.values();
    const lane = async () => {
      for (const producer of waiting) {
        try {
          await this.post(producer);
        } catch (error) {
          if (!(error instanceof Unreachable)) throw error;
          lost = error;
          this.schedule(producer);
        }
      }
    };
    await Promise.all(Array.from({ length: MAX_CONCURRENT_POSTS }, lane));
    if (lost === null || this.cutting.signal.aborted) return this.backoff.reset();
    this.onFailure(lost);
    await sleep(this.backoff.nextMs(/** @type {unknown} */ (lost) instanceof Busy ? Infinity : this.awayDelayMs), stopping);
  }

  /**
   * Open a producer if necessary, and post one body of its events.
   * @param {Producer} producer
   */
  async post(producer) {
    if (producer.finished || this.cutting.signal.aborted) return;
    try {
      if (!producer.opened) await this.open(producer);
      await this.postEvents(producer);
    } catch (error) {
      if (!(error instanceof RequestRefused)) throw error;
      this.onRefusal(producer, error);
    }
  }

  /** @param {Producer} producer */
  async postEvents(producer) {
    const batch = producer.buffer.takeBatch(BODY_BYTES);
    if (!batch.length) return;
    try {
      this.applyAnswer(producer, batch, await this.postBatch(producer, batch));
    } catch (error) {
      if (!this.cutting.signal.aborted) producer.buffer.rewind(batch[0].seq);
      throw error;
    }
    if (producer.buffer.hasUnsent) this.schedule(producer);
  }

  /**
   * Post events; returns `next_seq` and `errors`, whether all were stored or not.
   *
   * Throws `RequestRefused` for what concerns the request and not its events, and `Unreachable`.
   * @param {Producer} producer
   * @param {Ack[]} batch
   * @returns {Promise<{next_seq: number, errors: ServerFrame[]}>}
   */
  async postBatch(producer, batch) {
    /** @type {Record<string, string>} */
    const query = { producer: producer.name };
    // The epoch lets the server refuse this process once another has opened the producer. But an open whose answer
    // was lost may have raised it too: an outdated epoch would be refused as superseded, by our own open, for good.
    if (producer.epoch !== null && !producer.unansweredOpens) query.epoch = String(producer.epoch);
    if (batch.length && this.declaring.has(producer)) query.from_seq = String(batch[0].seq);
    const body = batch.map((ack) => ack.payload).join("\n") || "[]";
    const path = sessionPath(producer.sessionId, "/events");
    try {
      const answer = await this.rest.request("POST", path, { query, body, signal: this.cutting.signal });
      this.onAnswer();
      return answer;
    } catch (error) {
      if (!(error instanceof RequestRefused) || !("next_seq" in error.problem && "errors" in error.problem)) throw error;
      this.onAnswer();
      return /** @type {any} */ (error.problem);
    }
  }

  /**
   * Handle the answer to one body: each of its events is stored, refused, or to be resent.
   * @param {Producer} producer
   * @param {Ack[]} batch
   * @param {{next_seq: number, errors: ServerFrame[]}} answer
   */
  applyAnswer(producer, batch, answer) {
    const last = Math.min(batch[batch.length - 1].seq, answer.next_seq - 1);
    for (const error of answer.errors) {
      if (!producer.onError({ ...error, type: "error" })) continue;
      this.bringBack(producer, error);
      return;
    }
    this.declaring.delete(producer);
    producer.onAck(last);
  }

  /**
   * Declare the hole that stops a producer; anything else that stops it waits for a websocket.
   * @param {Producer} producer
   * @param {ServerFrame} frame
   */
  bringBack(producer, frame) {
    if (frame.code !== "seq_gap" || this.declaring.has(producer)) {
      this.blocked.add(producer);
      return;
    }
    this.declaring.add(producer);
    producer.buffer.rewind();
    this.schedule(producer);
  }

  /**
   * Create the session if it does not exist, and ask for its position. Throws as `RestClient.request`.
   * @param {Producer} producer
   */
  async open(producer) {
    let state = "running";
    try {
      const body = JSON.stringify({ ...producer.config, session_id: producer.sessionId });
      ({ state } = await this.rest.request("POST", "/v1/sessions", { body, signal: this.cutting.signal }));
    } catch (error) {
      if (!(error instanceof RequestRefused) || error.code !== "session_exists") throw error;
    }
    const { next_seq } = await this.postBatch(producer, []);
    const next_turn = await this.nextTurn(producer);
    if (!producer.opened) producer.onReady({ type: "session.ready", next_seq, next_turn, state });
  }

  /**
   * The turn after the newest message; 1 if the key may not read.
   * @param {Producer} producer
   * @returns {Promise<number>}
   */
  async nextTurn(producer) {
    try {
      const query = { open: "true", limit: "1" };
      const path = sessionPath(producer.sessionId, "/history");
      const { contents } = await this.rest.request("GET", path, { query, signal: this.cutting.signal });
      return contents.length ? contents[contents.length - 1].turn_id + 1 : 1;
    } catch (error) {
      if (error instanceof RequestRefused) return 1;
      throw error;
    }
  }

  /**
   * Handle the refusal of a whole request. Throws if it concerns the client as a whole, or may pass.
   * @param {Producer} producer
   * @param {RequestRefused} refused
   */
  onRefusal(producer, refused) {
    if (isTransient(refused.code, refused.status) || refused.code.startsWith("http_")) {
      throw passingError(displayUrl(this.rest.url), refused.code, refused.status, refused.detail);
    }
    this.onAnswer();
    if (refused.code === "unknown_session") {
      producer.opened = false; // the store is another one: create the session again
      this.schedule(producer);
    } else if (refused.code === "session_erased") {
      producer.fail(new SessionErased(refused.code, refused.detail));
    } else if (refused.status !== null && CLIENT_FATAL_STATUSES.has(refused.status) && producer.opened) {
      throw refused;
    } else {
      producer.fail(refused);
    }
  }
}
