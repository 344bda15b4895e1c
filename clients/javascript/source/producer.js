/**
 * One producer of one session: the protocol's rules of order, on the client's side.
 *
 * A producer knows nothing of connections. A transport sends what `openFrame` and `buffer.takeBatch` return, and passes
 * on what the server answers.
 */
import { Ack, Buffer, NUMBER_BYTES } from "./buffer.js";
import {
  ClientError,
  EventRefused,
  PRODUCER_FATAL_CODES,
  RequestRefused,
  SessionEnded,
  SessionErased,
  Superseded,
  TimedOut,
} from "./errors.js";
import { isWorthSaying } from "./metrics.js";
import { brokenLimit, utf8Bytes } from "./strict-json.js";
import { Deferred, within } from "./waiting.js";

const NOT_SENDABLE = ["session.open", "auth"];

/**
 * A frame of any type from the server; fields that the client does not know are ignored.
 * @typedef {object} ServerFrame
 * @property {string} type
 * @property {string | null} [session_id]
 * @property {string | null} [producer]
 * @property {number | null} [seq]
 * @property {string} [code]
 * @property {string} [detail]
 * @property {number | null} [expected]
 * @property {string} [state]
 * @property {number | null} [epoch]
 * @property {number} [next_seq]
 * @property {number} [next_turn]
 * @property {string | null} [incarnation]
 */

/**
 * What a producer needs of its client.
 * @typedef {object} Owner
 * @property {import("./options.js").Options} options
 * @property {import("./metrics.js").DroppedEvents} drops its account of the events that could not be taken
 * @property {(producer: Producer) => void} onFinished called once, when there is nothing more to send and never will be
 */

export class Producer {
  /**
   * @param {string} sessionId
   * @param {string} name
   * @param {Record<string, any> | undefined} config
   * @param {Owner} owner
   */
  constructor(sessionId, name, config, owner) {
    this.sessionId = sessionId;
    this.name = name;
    this.config = config;
    this.owner = owner;
    this.buffer = new Buffer(owner.options);
    /** Number of events that could not be taken. */
    this.dropped = 0;
    /** @type {Record<string, number>} What the server has refused, by code. */
    this.refusals = {};
    /** Whether the server has answered an open. */
    this.opened = false;
    /** Whether the held events have their final seqs; they have not before the first answer. */
    this.numbered = false;
    /** `session.open` frames sent since that answer; each may have raised the epoch. */
    this.unansweredOpens = 0;
    /** Opens sent before the last answer that its epoch does not count; the server may still process them. */
    this.strayOpens = 0;
    /** @type {number | null} */
    this.epoch = null;
    /** @type {string | null} */
    this.incarnation = null;
    this.state = "running";
    this.nextTurn = 1;
    /** @type {Ack | null} The `session.end`, once it was taken. */
    this.end = null;
    /** @type {ClientError | null} Why the producer takes nothing more. */
    this.error = null;
    this.finished = false;
    /** @type {string | undefined} The other stack whose frames are sent. */
    this.dialect = undefined;
    this.timesFound = 0;
    /** Whether the transport is about to be woken for the events that were taken. */
    this.wakeupPending = false;
    /** @type {Deferred<void>} */
    this.ready = new Deferred();
    /** @type {{newest: Ack, waiter: Deferred<void>}[]} */
    this.flushes = [];
  }

  get key() {
    return keyOf(this.sessionId, this.name);
  }

  // Events

  /**
   * Take an event. Never throws: the ack of an event that cannot be taken has the error.
   * @param {Record<string, any>} event
   * @param {boolean} [ends]
   * @returns {Ack}
   */
  take(event, ends = false) {
    try {
      const error = this.refusal();
      return error === null ? this.add(event, ends) : this.drop(error);
    } catch (mistake) {
      return this.drop(mistake instanceof ClientError ? mistake : notJson(mistake));
    }
  }

  /** Why no event can be taken any more. */
  refusal() {
    if (this.error === null && (this.end !== null || this.state === "ended")) {
      return new SessionEnded("session_ended", this.endedSentence());
    }
    return this.error;
  }

  /**
   * Put an event into the buffer. Throws `ClientError`, and JavaScript's errors about what is not JSON.
   * @param {Record<string, any>} event
   * @param {boolean} ends
   */
  add(event, ends) {
    if (typeof event !== "object" || event === null || Array.isArray(event)) {
      throw new EventRefused("not_events", "An event must be an object.");
    }
    const { type, turn_id: turn } = event;
    if (NOT_SENDABLE.includes(type)) throw new EventRefused("unknown_type", `${type} is sent by the client itself.`);
    const isEnd = type === "session.end";
    const { body, bytes } = this.encode(event);
    const saysLastSeq = isEnd && event.last_seq === undefined;
    const ack = this.buffer.add(body, bytes, { ignoreLimits: ends || isEnd, saysLastSeq });
    if (ends || isEnd) this.end = ack;
    if (Number.isInteger(turn)) this.nextTurn = Math.max(this.nextTurn, turn + 1);
    return ack;
  }

  /**
   * Count an event that was not taken, and report it; the event's ack.
   * @param {ClientError} error
   */
  drop(error) {
    this.dropped += 1;
    this.owner.drops.report(this.sessionId, this.name, error);
    const ack = new Ack(0);
    ack.resolve(error);
    return ack;
  }

  endedSentence() {
    return `The session ${this.sessionId} has ended; it takes no new events.`;
  }

  /** The error of an open that finds a session which has ended. */
  endedBefore() {
    return new SessionEnded("session_ended", `${this.endedSentence()} Each call needs a sessionId of its own.`);
  }

  /**
   * The event as it is sent, but for its number, which it gets in front.
   * @param {Record<string, any>} event
   */
  encode(event) {
    const { seq, ...fields } = event;
    const next = this.numbered ? this.buffer.nextSeq : null;
    if (seq !== undefined && seq !== next) {
      const right = next === null ? "known once the session is open" : `${next}`;
      throw new EventRefused("seq_conflict", `The event's seq must be the next one, ${right}.`);
    }
    const body = JSON.stringify({
      ...fields,
      session_id: this.sessionId,
      producer: this.name,
      ts: fields.ts ?? Date.now(),
    });
    const bytes = utf8Bytes(body);
    const broken = brokenLimit(body, bytes + NUMBER_BYTES); // what closes the connection would be resent for ever
    if (broken !== null) throw new EventRefused(...broken);
    return { body, bytes };
  }

  // Opening

  /**
   * The frame that opens the producer, or opens it again.
   *
   * `from_seq` matters only if the server has less than it once acknowledged. The configuration is used only if the
   * session does not exist, or no longer exists.
   */
  openFrame() {
    this.unansweredOpens += 1;
    return {
      type: "session.open",
      session_id: this.sessionId,
      producer: this.name,
      ...(this.config === undefined ? {} : { session: this.config }),
      ...(this.opened ? { from_seq: this.buffer.lowestSeq } : {}),
    };
  }

  /**
   * Continue from the server's position, after its answer to an open.
   * @param {ServerFrame} frame
   */
  onReady(frame) {
    // The server raises the epoch by one for each open that it processes. If the epoch has risen by less than the
    // number of opens sent, the rest are strays: given up by this client, but possibly still on their way. One that
    // arrives late supersedes this very producer; `onError` then opens once more instead of giving up.
    const nextSeq = frame.next_seq ?? 1;
    const epoch = frame.epoch ?? null;
    if (!this.numbered) this.buffer.number(nextSeq);
    else if (this.opened && this.isOurs(frame)) this.buffer.acknowledge(nextSeq - 1);
    this.numbered = true;
    this.buffer.start(nextSeq);
    this.buffer.rewind();
    const counted = this.epoch === null || epoch === null ? 1 : epoch - this.epoch;
    this.strayOpens = Math.max(0, this.strayOpens + this.unansweredOpens - counted);
    this.epoch = epoch;
    this.incarnation = frame.incarnation ?? null;
    this.unansweredOpens = 0;
    this.nextTurn = Math.max(this.nextTurn, frame.next_turn ?? 1);
    this.state = frame.state ?? "running";
    this.opened = true;
    if (this.state === "ended") this.ready.reject(this.endedBefore());
    else this.ready.resolve();
    this.notifyWaiters();
  }

  /**
   * Whether everything that the server has under this producer was sent by this client.
   *
   * If so, `next_seq` acknowledges what is below it. If another process or a restored store may have come in between,
   * the same seqs may hold other events. Then everything is resent: stored events are acknowledged again, and others
   * are refused with `seq_conflict` instead of being taken for stored.
   * @param {ServerFrame} frame
   */
  isOurs(frame) {
    const onlyWeOpened = this.unansweredOpens === 1 && this.epoch !== null && frame.epoch === this.epoch + 1;
    const sameStore = (frame.incarnation ?? null) === this.incarnation;
    return onlyWeOpened && sameStore && (frame.next_seq ?? 1) <= this.buffer.nextSeq;
  }

  // Answers

  /** @param {number} seq */
  onAck(seq) {
    this.buffer.acknowledge(seq);
    this.notifyWaiters();
  }

  /**
   * Handle an `error` about this producer. Returns whether it must be opened again to continue.
   * @param {ServerFrame} frame
   * @returns {boolean}
   */
  onError(frame) {
    const code = frame.code ?? "";
    const seq = frame.seq ?? null;
    if (code === "seq_gap") return !this.rewindTo(frame.expected ?? null);
    if (code === "superseded" && this.strayOpens) {
      this.strayOpens -= 1; // by our own open, over a connection that was given up
      return true;
    }
    this.refusals[code] = (this.refusals[code] ?? 0) + 1;
    const which = `session ${this.sessionId}, producer ${this.name}, seq ${seq}`;
    if (isWorthSaying(this.refusals[code])) this.owner.options.warn(`${which}: ${code}: ${frame.detail ?? ""}`);
    if (code === "session_ended") {
      this.state = "ended";
      this.buffer.fail(new SessionEnded(code, this.endedSentence(), seq), seq ?? 0);
    } else if (seq === null || PRODUCER_FATAL_CODES.has(code)) {
      this.fail(errorOf(frame));
    } else {
      this.buffer.refuse(seq, new EventRefused(code, frame.detail ?? "", seq));
      if (this.end?.seq === seq) this.end = null;
    }
    this.notifyWaiters();
    return false;
  }

  /**
   * Resend from the seq that the server expects; false if that seq is not in the buffer.
   * @param {number | null} expected
   */
  rewindTo(expected) {
    if (expected === null || expected < this.buffer.lowestSeq || expected >= this.buffer.nextSeq) return false;
    this.buffer.rewind(expected);
    return true;
  }

  // The end

  /**
   * Give up: all acks and waiters get the error, the first one if there are several.
   * @param {ClientError} error
   */
  fail(error) {
    this.error ??= error;
    this.buffer.fail(this.error);
    this.ready.reject(this.error);
    this.notifyWaiters();
  }

  /** Wake the flushes whose events are all resolved, and note when the producer is finished. */
  notifyWaiters() {
    for (const flush of this.flushes) if (flush.newest.released) flush.waiter.resolve();
    this.flushes = this.flushes.filter((flush) => !flush.newest.released);
    if (this.end?.released && this.error === null) this.state = "ended";
    const done = this.error !== null || (this.state === "ended" && !this.buffer.length);
    if (done && !this.finished) {
      this.finished = true;
      this.owner.onFinished(this);
    }
  }

  /**
   * Wait until everything taken so far is resolved. Throws `TimedOut`, and what ended the producer.
   * @param {number | null} [timeoutMs]
   */
  async flush(timeoutMs = null) {
    const newest = this.buffer.newest;
    if (newest !== undefined) {
      const flush = { newest, waiter: /** @type {Deferred<void>} */ (new Deferred()) };
      this.flushes.push(flush);
      try {
        const late = () => new TimedOut(`The events up to ${newest.seq} were`, timeoutMs ?? 0);
        await within(flush.waiter.promise, timeoutMs, late);
      } finally {
        this.flushes = this.flushes.filter((other) => other !== flush);
      }
    }
    if (this.error !== null) throw this.error;
  }
}

/**
 * Under which a client knows a producer.
 * @param {string} sessionId
 * @param {string} name
 */
export function keyOf(sessionId, name) {
  return `${sessionId} ${name}`; // a session id has no spaces
}

/**
 * Whatever was given: this runs where audio is processed, with a person listening.
 * @param {unknown} mistake
 */
function notJson(mistake) {
  const kind = mistake instanceof Error ? mistake.name : typeof mistake;
  const refused = new EventRefused("invalid_json", `The event cannot be written as JSON (${kind}).`);
  refused.cause = mistake;
  return refused;
}

/**
 * The error that ends a producer.
 * @param {ServerFrame} frame
 */
function errorOf(frame) {
  const code = frame.code ?? "";
  const detail = frame.detail ?? "";
  if (code === "superseded") return new Superseded();
  if (code === "session_erased") return new SessionErased(code, detail, frame.seq ?? null);
  if (frame.seq != null) return new EventRefused(code, detail, frame.seq);
  return new RequestRefused(code, detail);
}
