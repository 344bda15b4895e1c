/** The events of one producer that are not acknowledged yet. */
import { BufferFull, TimedOut } from "./errors.js";
import { within } from "./waiting.js";

/** @typedef {import("./errors.js").ClientError} ClientError */

/** How many bytes its number adds to an event. */
export const NUMBER_BYTES = 64;
/** So many events that have left are dropped from the array at once. */
const COMPACT_AT = 1024;

/**
 * The outcome of one event: awaiting it returns its seq once it is on disk, or throws `ClientError`.
 *
 * An event that was not taken has the seq 0, and its error at once. Nobody need await it: nothing is thrown then.
 *
 * @implements {PromiseLike<number>}
 */
export class Ack {
  /**
   * @param {number} seq
   * @param {string} [body] the event as JSON, without its number
   * @param {number} [size] in bytes, as it is sent
   * @param {boolean} [saysLastSeq] whether the seq before its own is sent with it
   */
  constructor(seq, body = "", size = 0, saysLastSeq = false) {
    /** Counted from 1 until the server has said where to continue. */
    this.seq = seq;
    this.body = body;
    this.size = size;
    this.saysLastSeq = saysLastSeq;
    /** Whether the outcome is known. */
    this.done = false;
    /** Whether it, and every event before it, is resolved. */
    this.released = false;
    /** @type {ClientError | null} */
    this.error = null;
    /** @type {(() => void)[]} */
    this.waiters = [];
  }

  /** The event as it is sent, and resent: the same text each time. */
  get payload() {
    const last = this.saysLastSeq ? `"last_seq":${this.seq - 1},` : "";
    return `{"seq":${this.seq},${last}${this.body.slice(1)}`;
  }

  /**
   * As a promise has it, so that an ack can be awaited, by many and again.
   * @template [One=number]
   * @template [Other=never]
   * @param {((seq: number) => One | PromiseLike<One>) | null} [onStored]
   * @param {((error: any) => Other | PromiseLike<Other>) | null} [onError]
   * @returns {Promise<One | Other>}
   */
  then(onStored, onError) {
    return this.outcome().then(onStored, onError);
  }

  /**
   * As awaiting the ack, for at most so long. Throws `TimedOut` and `ClientError`.
   * @param {number | null} [timeoutMs]
   * @returns {Promise<number>}
   */
  result(timeoutMs = null) {
    return within(this.outcome(), timeoutMs, () => new TimedOut(`Event ${this.seq} was`, timeoutMs ?? 0));
  }

  /** @returns {Promise<number>} */
  async outcome() {
    if (!this.done) await new Promise((resolve) => this.waiters.push(() => resolve(undefined)));
    if (this.error !== null) throw this.error;
    return this.seq;
  }

  /**
   * Set the outcome and wake all waiters; later outcomes are ignored.
   * @param {ClientError | null} [error]
   */
  resolve(error = null) {
    if (this.done) return;
    this.error = error;
    this.done = true;
    for (const wake of this.waiters.splice(0)) wake();
  }
}

/** Holds events in the order of their seqs until they are acknowledged or refused. */
export class Buffer {
  /** @param {{maxEvents: number, maxBytes: number}} limits */
  constructor(limits) {
    this.maxEvents = limits.maxEvents;
    this.maxBytes = limits.maxBytes;
    this.nextSeq = 1;
    /** Bytes held. */
    this.size = 0;
    /** @type {Ack[]} */
    this.items = [];
    /** Where the events begin that are still held; those before have left. */
    this.head = 0;
    /** Where the events begin that were not sent; those between are sent and not acknowledged. */
    this.cursor = 0;
  }

  get length() {
    return this.items.length - this.head;
  }

  get hasUnsent() {
    return this.cursor < this.items.length;
  }

  get hasSent() {
    return this.cursor > this.head;
  }

  /** The newest event that is held. */
  get newest() {
    return this.length ? this.items[this.items.length - 1] : undefined;
  }

  /** The lowest seq that can still be sent; `nextSeq` if nothing is held. */
  get lowestSeq() {
    return this.length ? this.items[this.head].seq : this.nextSeq;
  }

  /**
   * Add an event under the next seq. Throws `BufferFull`; then nothing is added.
   * @param {string} body the event as JSON, without its number
   * @param {number} bodyBytes
   * @param {{ignoreLimits?: boolean, saysLastSeq?: boolean}} [how]
   */
  add(body, bodyBytes, { ignoreLimits = false, saysLastSeq = false } = {}) {
    const size = bodyBytes + NUMBER_BYTES;
    const full = this.length >= this.maxEvents || this.size + size > this.maxBytes;
    if (full && !ignoreLimits) throw new BufferFull(this.length, this.size);
    const ack = new Ack(this.nextSeq, body, size, saysLastSeq);
    this.nextSeq += 1;
    this.size += size;
    this.items.push(ack);
    return ack;
  }

  /**
   * Continue after what the server has stored, from an earlier process or from another one.
   * @param {number} nextSeq
   */
  start(nextSeq) {
    this.nextSeq = Math.max(this.nextSeq, nextSeq);
  }

  /**
   * Number what was taken before the server's position was known. None of it was sent.
   * @param {number} nextSeq
   */
  number(nextSeq) {
    const added = nextSeq - 1;
    for (let index = this.head; index < this.items.length; index += 1) this.items[index].seq += added;
    this.nextSeq += added;
  }

  /**
   * Take the next events to send: at least one if there are any, otherwise at most `maxBytes`.
   * @param {number} maxBytes
   */
  takeBatch(maxBytes) {
    const from = this.cursor;
    let size = 0;
    while (this.hasUnsent && (this.cursor === from || size + this.items[this.cursor].size < maxBytes)) {
      size += this.items[this.cursor].size + 1;
      this.cursor += 1;
    }
    return this.items.slice(from, this.cursor);
  }

  /**
   * Mark the sent events from `seq` on as unsent.
   * @param {number} [seq]
   */
  rewind(seq = 0) {
    while (this.hasSent && this.items[this.cursor - 1].seq >= seq) this.cursor -= 1;
  }

  /**
   * Resolve everything up to `seq` as stored.
   * @param {number} seq
   */
  acknowledge(seq) {
    this.releaseFront((ack) => ack.seq <= seq);
  }

  /**
   * Resolve one event as refused. Events before it stay unresolved.
   * @param {number} seq
   * @param {ClientError} error
   */
  refuse(seq, error) {
    for (let index = this.head; index < this.cursor && this.items[index].seq <= seq; index += 1) {
      if (this.items[index].seq === seq) this.items[index].resolve(error);
    }
    this.releaseFront(() => false);
  }

  /**
   * Fail all events from `fromSeq` on.
   * @param {ClientError} error
   * @param {number} [fromSeq]
   */
  fail(error, fromSeq = 0) {
    for (const ack of this.items.slice(this.head)) if (ack.seq >= fromSeq) ack.resolve(error);
    this.releaseFront(() => false);
  }

  /**
   * Drop events from the front for as long as they are done; events leave the buffer only in order.
   * @param {(ack: Ack) => boolean} isStored
   */
  releaseFront(isStored) {
    while (this.length && (this.items[this.head].done || isStored(this.items[this.head]))) {
      const ack = this.items[this.head];
      this.head += 1;
      this.size -= ack.size;
      ack.resolve();
      ack.body = "";
      ack.released = true;
    }
    this.cursor = Math.max(this.cursor, this.head);
    if (this.head >= COMPACT_AT || this.head === this.items.length) {
      this.items.splice(0, this.head);
      this.cursor -= this.head;
      this.head = 0;
    }
  }
}
