/** What a connection has of its memory: the session, the context of the next LLM call, and the end. */

import { TWILIO_MEDIA_STREAMS } from "../dialects/twilio-media-streams.js";
import { TimedOut } from "../errors.js";
import { within } from "../waiting.js";
import { BackgroundSession, warn } from "./background.js";
import { CLOCK, FrameQueue, unwaited } from "./frames.js";
import { PhoneQueue } from "./phone.js";
import { sessionIdOf } from "./session-id.js";

/** A telephone number, which may not stand in an id. */
const INTERNATIONAL = /\+\d[\d\s().-]{5,}\d/;

/** @typedef {import("../client.js").Client} Client */
/** @typedef {import("../dialects/dialect.js").JsonObject} JsonObject */
/** @typedef {import("../dialects/dialect.js").Side} Side */
/** @typedef {import("./frames.js").RawMessage} RawMessage */
/** @typedef {import("./frames.js").ReducedCrossing} ReducedCrossing */
/** An event or a frame on its way to the session. */
/** @typedef {import("./background.js").Sent} Sent */

/** How long things take, in ms; tests set them. */
export const TIMES = {
  /** How long events wait for the frame that says the vendor's id of the session. */
  idMs: 10_000,
  /** How long a connection that was closed may come back before its session is ended. */
  closedMs: 5_000,
  /** The same for one that was lost. */
  lostMs: 60_000,
  /** How long a call that is over is still delivered. */
  lingerMs: 600_000,
};
/** Events that wait for that frame. */
const MAX_WAITING = 64;
/** The default reason of an end. */
const CLOSED = "closed";

/** The memory of one connection; `memoryOf` finds it. Nothing here throws, or waits without a bound. */
export class CallMemory {
  /**
   * @param {object} given
   * @param {Client} given.client
   * @param {boolean} given.isOwn whether the client was made for this connection alone
   * @param {import("../dialects/dialect.js").Dialect} given.dialect
   * @param {string | undefined} given.sessionId
   * @param {Side} given.side
   * @param {string} given.producer
   * @param {JsonObject | undefined} given.config
   * @param {boolean} given.keepTyped
   * @param {boolean} given.ends whether the end of the connection is that of the session
   */
  constructor(given) {
    this.client = given.client;
    this.isOwn = given.isOwn;
    this.dialect = given.dialect;
    this.sender = given.side;
    /** @type {Side} Who sends what this program receives. */
    this.receiver = given.side === "app" ? "vendor" : "app";
    this.producer = given.producer;
    this.config = given.config;
    this.ends = given.ends;
    this.ended = false;
    /** Events that came after the end. */
    this.lost = 0;
    /** @type {BackgroundSession | null} */
    this.background = null;
    /** @type {Sent[]} */
    this.waiting = [];
    const tell = (/** @type {string} */ sentence) => warn(this.client, sentence);
    const Queue = given.dialect === TWILIO_MEDIA_STREAMS ? PhoneQueue : FrameQueue;
    this.queue = new Queue(given.dialect, given.keepTyped, (reduced) => this.take(reduced), tell);
    /** @type {number | null} When the connection was closed or lost, Unix ms. */
    this.leftAt = null;
    this.closedByApp = false;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    /** @type {Promise<void> | null} */
    this.leaving = null;
    if (given.sessionId !== undefined) {
      this.begin(given.sessionId);
    }
  }

  // For users

  /** The id of the session; null until the vendor has said its own. */
  get sessionId() {
    return this.background?.sessionId ?? null;
  }

  /** The client's session; null until it is open. */
  get session() {
    return this.background?.session ?? null;
  }

  /** What became of the messages so far: `taken`, `ignored`, `unknown`, `malformed`, `dropped`. */
  get counts() {
    return { ...this.queue.counts };
  }

  /** How many frames and events could not be kept: too much is unacknowledged, or the session has ended. */
  get dropped() {
    return this.queue.counts.dropped + this.lost + (this.background?.dropped ?? 0);
  }

  /**
   * Send an event of voicemem.v1, in order with the frames: `tool.call`, `message`, `tts` …; returns at once.
   *
   * @param {JsonObject} event
   */
  send(event) {
    const ts = CLOCK.now();
    this.queue.after(() => {
      if (typeof event === "object" && event !== null) {
        this.forward({ event: { ts, ...event }, ends: event.type === "session.end" });
      } else {
        this.failed(new TypeError("An event must be an object."));
      }
    });
  }

  /**
   * The body of the next LLM request, with all that has crossed the connection; null if it does not come in time.
   *
   * It takes at most the client's `contextTimeoutMs` in all. After a failure the next are null at once, for five
   * seconds.
   *
   * @param {JsonObject} [params] what `session.context` takes
   * @returns {Promise<JsonObject | null>}
   */
  async context(params = {}) {
    await this.reduced();
    return this.background === null ? null : this.background.context(params);
  }

  /**
   * End the session, if it has not ended, and wait until all of it is on disk.
   *
   * It waits at most `timeoutMs`, by default the client's `closeTimeoutMs`; the rest is delivered later, while the
   * program runs. A client that was made for this connection is closed then.
   *
   * @param {{reason?: string, timeoutMs?: number}} [how]
   */
  async close({ reason = CLOSED, timeoutMs = this.client.options.closeTimeoutMs } = {}) {
    clearTimeout(this.timer);
    await this.reduced();
    this.end(reason);
    const leaving = (this.leaving ??= this.leave());
    await within(leaving, timeoutMs, () => new TimedOut("A call was", timeoutMs)).catch(() => {});
  }

  /** @returns {Promise<void>} once all that has crossed the connection so far is reduced */
  reduced() {
    return new Promise((resolve) => this.queue.after(resolve));
  }

  // From the connection

  /** @param {RawMessage} data a message that the program has received */
  received(data) {
    this.comeBack();
    this.queue.put(data, this.receiver);
  }

  /** @param {RawMessage} data a message that the program has sent */
  sent(data) {
    this.comeBack();
    this.queue.put(data, this.sender);
  }

  /**
   * The connection was closed, or lost.
   *
   * @param {boolean} isClean
   * @param {boolean} [byApp]
   */
  closed(isClean, byApp = false) {
    const givesUp = byApp && !this.closedByApp;
    this.closedByApp ||= byApp;
    if (this.leaving !== null || (this.leftAt !== null && !givesUp)) {
      return;
    }
    this.leftAt ??= CLOCK.now();
    clearTimeout(this.timer);
    this.timer = unwaited(() => this.queue.after(() => this.leaveAlone()), isClean ? TIMES.closedMs : TIMES.lostMs);
  }

  /** @param {unknown} error a message could not be copied */
  failed(error) {
    this.queue.reject(error);
  }

  /** Frames after a loss: openai's SDK has connected again. */
  comeBack() {
    if (this.leftAt !== null && !this.closedByApp) {
      clearTimeout(this.timer);
      this.leftAt = null;
    }
  }

  // To the memory

  /** @param {ReducedCrossing} crossing is handed on, to the session that it may be the first to name */
  take({ frame, side, ts }) {
    if (this.background === null && frame.sessionId !== undefined) {
      this.begin(INTERNATIONAL.test(frame.sessionId) ? undefined : sessionIdOf(frame.sessionId));
    }
    this.forward({ frame: frame.content, from: side, ts, ends: frame.ends === true });
  }

  /** @param {Sent} sent */
  forward(sent) {
    if (this.ended) {
      this.lost += 1;
      return;
    }
    this.ended = sent.ends;
    if (this.background !== null) {
      this.background.send(sent);
      return;
    }
    if (this.waiting.length === 0) {
      unwaited(() => this.stopWaiting(), TIMES.idMs);
    }
    this.waiting.push(sent);
    if (this.waiting.length >= MAX_WAITING) {
      this.stopWaiting();
    }
  }

  /** Go on without the vendor's id. */
  stopWaiting() {
    if (this.background === null) {
      this.begin(undefined);
    }
  }

  /** @param {string | undefined} sessionId opens the session, and sends what waited for it */
  begin(sessionId) {
    const { client, producer, config, dialect } = this;
    this.background = new BackgroundSession(client, { sessionId, producer, config, dialect: dialect.name });
    for (const sent of this.waiting.splice(0)) {
      this.background.send(sent);
    }
  }

  // The end

  /** @param {string} reason */
  end(reason) {
    if (!this.ended && (this.background !== null || this.waiting.length > 0)) {
      const ts = this.leftAt ?? CLOCK.now();
      this.forward({ event: { type: "session.end", reason, ts }, ends: true });
    }
    this.ended = true;
  }

  /** End the session of a connection that did not come back, unless another connection continues it. */
  leaveAlone() {
    if (this.leftAt === null || this.leaving !== null) {
      return;
    }
    if (this.ends && (this.background === null || this.background.isAlone)) {
      this.end(CLOSED);
    }
    this.leaving = this.leave();
  }

  /** Wait until everything is on disk; then close a client of our own. */
  async leave() {
    if (this.background === null && this.waiting.length > 0) {
      this.begin(undefined);
    }
    await this.background?.close(TIMES.lingerMs);
    if (this.isOwn) {
      await this.client.close().catch((/** @type {Error} */ error) => warn(this.client, error.message));
    }
  }
}
