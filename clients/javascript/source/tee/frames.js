/**
 * Frames on their way from a connection to the memory: put aside as they are, and reduced once the program is idle.
 *
 * What is put aside is bounded, and is reduced before anything else waits; so it is short-lived, whatever the memory does.
 */

import { CALLER, callerIn } from "../dialects/caller-fields.js";
import { Binary, isObject, MalformedFrame, UnknownFrame } from "../dialects/dialect.js";

/** @typedef {import("../dialects/dialect.js").Dialect} Dialect */
/** @typedef {import("../dialects/dialect.js").Frame} Frame */
/** @typedef {import("../dialects/dialect.js").JsonObject} JsonObject */
/** @typedef {import("../dialects/dialect.js").RawFrame} RawFrame */
/** @typedef {import("../dialects/dialect.js").Side} Side */

/** A message that crossed the connection, and when, Unix ms. */
/** @typedef {{data: string | Binary | Blob, side: Side, ts: number}} Crossing */
/** What is kept of it. */
/** @typedef {{frame: Frame, side: Side, ts: number}} ReducedCrossing */

/** What a socket takes and gives. */
/** @typedef {string | ArrayBuffer | ArrayBufferView | Blob} RawMessage */

const MAX_FRAME_BYTES = 16 * 1024 * 1024;
/** Frames put aside, at most; beyond that they are dropped and counted. */
const MAX_ASIDE = 10_000;
const MAX_ASIDE_BYTES = 4 * MAX_FRAME_BYTES;
/** How long frames are reduced at a time, while the call waits. */
const SLICE_MS = 1;
/** Counts of audio that are equal otherwise are merged for so long, unless another frame comes. */
const MERGE_MS = 250;
/** Types of unknown frames that the log names. */
const MAX_NAMED = 100;
/** The time, Unix ms; tests set it. */
export const CLOCK = { now: () => Date.now() };
const BRACE = 0x7b;
const WHITE_SPACE = [0x20, 0x09, 0x0a, 0x0d];

/** Takes messages in the path of the call, and forwards what their dialect keeps, in order. Nothing here throws. */
export class FrameQueue {
  /**
   * @param {Dialect} dialect
   * @param {boolean} keepTyped
   * @param {(reduced: ReducedCrossing) => void} forward
   * @param {(sentence: string) => void} warn
   */
  constructor(dialect, keepTyped, forward, warn) {
    this.dialect = dialect;
    this.keepTyped = keepTyped;
    this.forward = forward;
    this.warn = warn;
    /** What became of the messages. */
    this.counts = { taken: 0, ignored: 0, unknown: 0, malformed: 0, dropped: 0 };
    /** @type {Set<string>} */
    this.named = new Set();
    /** @type {(Crossing | (() => void))[]} */
    this.aside = [];
    /** How many of these were taken. */
    this.begun = 0;
    this.asideBytes = 0;
    this.isScheduled = false;
    /** Whether the first that waits is being read: a `Blob` gives its bytes later. */
    this.isReading = false;
    /** @type {ReducedCrossing | null} A count of audio that may still grow. */
    this.audio = null;
    /** @type {JsonObject | null} What was said of who calls, until a frame carries it. */
    this.caller = null;
    this.carried = "";
  }

  /**
   * Put a message aside.
   *
   * @param {RawMessage} data
   * @param {Side} side
   */
  put(data, side) {
    const held = typeof data === "string" || isBlob(data) ? data : bytesOrText(data, this.dialect.readsBinary === true);
    const size = sizeOf(held);
    if (this.aside.length - this.begun >= MAX_ASIDE || this.asideBytes + size > MAX_ASIDE_BYTES) {
      this.drop();
      return;
    }
    this.aside.push({ data: held, side, ts: CLOCK.now() });
    this.asideBytes += size;
    this.schedule();
  }

  /**
   * Do something once all that was put aside so far is reduced; at once, unless a `Blob` is among it.
   *
   * @param {() => void} job
   */
  after(job) {
    this.aside.push(job);
    this.work(Infinity);
  }

  drop() {
    this.counts.dropped += 1;
    if (this.counts.dropped === 1) {
      this.warn("The memory has missed a frame: more of them came than could be reduced.");
    }
  }

  schedule() {
    if (!this.isScheduled && !this.isReading) {
      this.isScheduled = true;
      later(() => {
        this.isScheduled = false;
        this.work(performance.now() + SLICE_MS);
      });
    }
  }

  /** @param {number} until reduce until then, and let the call continue */
  work(until) {
    while (this.begun < this.aside.length && !this.isReading) {
      const first = this.aside[this.begun];
      this.begun += 1;
      if (typeof first === "function") {
        this.forwardAudio();
        first();
      } else if (isBlob(first.data)) {
        this.read(first, first.data);
      } else {
        this.take(first, first.data);
      }
      if (performance.now() > until) {
        break;
      }
    }
    if (this.begun === this.aside.length || this.begun > MAX_ASIDE) {
      this.aside.splice(0, this.begun);
      this.begun = 0;
    }
    if (this.aside.length > 0) {
      this.schedule();
    }
  }

  /**
   * Read a message of a browser, whose bytes come later; those behind it wait.
   *
   * @param {Crossing} crossing
   * @param {Blob} blob
   */
  read(crossing, blob) {
    this.isReading = true;
    Promise.resolve()
      .then(() => blob.arrayBuffer())
      .then((buffer) => this.take(crossing, bytesOrText(buffer, this.dialect.readsBinary === true)))
      .catch((error) => this.reject(error))
      .finally(() => {
        this.asideBytes -= blob.size;
        this.isReading = false;
        this.schedule();
      });
  }

  /**
   * Reduce one message, and count what became of it.
   *
   * @param {Crossing} crossing
   * @param {string | Binary} data
   */
  take(crossing, data) {
    if (!isBlob(crossing.data)) {
      this.asideBytes -= sizeOf(data);
    }
    try {
      const raw = rawFrame(data);
      this.noteCaller(raw);
      const frame = this.reduce(raw, crossing.side, crossing.ts);
      if (frame === null || (frame.typed && !this.keepTyped)) {
        this.counts.ignored += 1;
        return;
      }
      this.counts.taken += 1;
      this.forwardInOrder({ frame: this.withCaller(frame), side: crossing.side, ts: crossing.ts });
    } catch (error) {
      // whatever crosses the connection, and whatever a dialect makes of it
      if (error instanceof UnknownFrame) {
        this.counts.unknown += 1;
        this.nameUnknown(error.message);
      } else {
        this.reject(error);
      }
    }
  }

  /**
   * The part of a message that is kept. Throws `MalformedFrame`, `UnknownFrame`.
   *
   * @param {RawFrame} raw
   * @param {Side} side
   * @param {number} _ts when it crossed the connection, Unix ms
   * @returns {Frame | null}
   */
  reduce(raw, side, _ts) {
    return this.dialect.reduce(raw, side);
  }

  /** @param {RawFrame} raw */
  noteCaller(raw) {
    const picked = callerIn(this.dialect, raw);
    const said = picked === null ? this.carried : JSON.stringify(picked);
    if (said !== this.carried) {
      this.caller = picked;
      this.carried = said;
    }
  }

  /**
   * A frame that carries who calls to the service, which decides whether that names the session's user.
   *
   * @param {Frame} frame
   * @returns {Frame}
   */
  withCaller(frame) {
    if (this.caller === null || frame.countsAudio || !isObject(frame.content)) {
      return frame;
    }
    const content = { ...frame.content, [CALLER]: this.caller };
    this.caller = null;
    return { ...frame, content };
  }

  /**
   * Count a message that says nothing to the dialect; the log says the reason of the first.
   *
   * @param {unknown} error
   */
  reject(error) {
    this.counts.malformed += 1;
    if (this.counts.malformed === 1) {
      const reason = error instanceof MalformedFrame ? error.message : (/** @type {any} */ (error)?.name ?? "unknown");
      this.warn(`A message is not a frame of ${this.dialect.name}, and is left out: ${reason}`);
    }
  }

  /** @param {string} kind a type that the dialect does not know; it is named once */
  nameUnknown(kind) {
    const name = JSON.stringify(kind.slice(0, 64));
    if (!this.named.has(name) && this.named.size < MAX_NAMED) {
      this.named.add(name);
      this.warn(`Frames of an unknown type are left out: ${this.dialect.name}, ${name}`);
    }
  }

  /** @param {ReducedCrossing} reduced is forwarded after those before it; a count of audio may wait to be added to */
  forwardInOrder(reduced) {
    if (this.audio !== null) {
      const both = merged(this.audio, reduced);
      if (both !== null) {
        this.audio = both;
        return;
      }
      this.forwardAudio();
    }
    if (reduced.frame.countsAudio) {
      this.audio = reduced;
      unwaited(() => this.audio?.ts === reduced.ts && this.forwardAudio(), MERGE_MS);
    } else {
      this.forward(reduced);
    }
  }

  forwardAudio() {
    if (this.audio !== null) {
      const audio = this.audio;
      this.audio = null;
      this.forward(audio);
    }
  }
}

/**
 * The frame of a message: its JSON object, or a text or bytes that are not one. Throws `MalformedFrame`.
 *
 * @param {string | Binary} data
 * @returns {RawFrame}
 */
export function rawFrame(data) {
  if (sizeOf(data) > MAX_FRAME_BYTES) {
    throw new MalformedFrame("A frame may be at most 16 MiB.");
  }
  if (typeof data !== "string") {
    return data;
  }
  let value;
  try {
    value = JSON.parse(data);
  } catch {
    return data;
  }
  if (!isObject(value)) {
    throw new MalformedFrame("A frame is a JSON object or a text.");
  }
  return value;
}

/**
 * A binary message as the text that it holds, or else by its size: the sender may use its buffer again.
 *
 * @param {ArrayBuffer | ArrayBufferView} data
 * @param {boolean} maybeText whether it may be a text other than JSON
 * @returns {string | Binary}
 */
function bytesOrText(data, maybeText) {
  const bytes = ArrayBuffer.isView(data)
    ? new Uint8Array(data.buffer, data.byteOffset, data.byteLength)
    : new Uint8Array(data);
  const first = bytes.find((byte) => !WHITE_SPACE.includes(byte));
  if ((first !== BRACE && !maybeText) || bytes.length > MAX_FRAME_BYTES) {
    return new Binary(bytes.length);
  }
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return new Binary(bytes.length);
  }
}

/**
 * One count for two of audio that are equal otherwise; null if they are not.
 *
 * @param {ReducedCrossing} one
 * @param {ReducedCrossing} other
 * @returns {ReducedCrossing | null}
 */
function merged(one, other) {
  if (!other.frame.countsAudio || one.side !== other.side || other.ts - one.ts > MERGE_MS) {
    return null;
  }
  const { audio_bytes: count, ...rest } = contentOf(one);
  const { audio_bytes: added, ...otherRest } = contentOf(other);
  if (JSON.stringify(rest) !== JSON.stringify(otherRest)) {
    return null;
  }
  return { ...one, frame: { ...one.frame, content: { ...rest, audio_bytes: count + added } } };
}

/**
 * @param {ReducedCrossing} reduced
 * @returns {import("../dialects/dialect.js").JsonObject}
 */
function contentOf(reduced) {
  return /** @type {import("../dialects/dialect.js").JsonObject} */ (reduced.frame.content);
}

/**
 * @param {unknown} data
 * @returns {data is Blob}
 */
function isBlob(data) {
  return typeof Blob !== "undefined" && data instanceof Blob;
}

/**
 * @param {string | Binary | Blob} data
 * @returns {number}
 */
function sizeOf(data) {
  if (typeof data === "string") {
    return data.length;
  }
  return data instanceof Binary ? 0 : data.size;
}

/**
 * Once what the program does now is done.
 *
 * @param {() => void} work
 */
function later(work) {
  const { setImmediate } = /** @type {any} */ (globalThis);
  if (setImmediate) {
    setImmediate(work);
  } else {
    setTimeout(work, 0);
  }
}

/**
 * A timer that a program which has nothing else to do does not wait for.
 *
 * @param {() => void} job
 * @param {number} ms
 * @returns {ReturnType<typeof setTimeout>}
 */
export function unwaited(job, ms) {
  const timer = setTimeout(job, ms);
  /** @type {any} */ (timer).unref?.();
  return timer;
}
