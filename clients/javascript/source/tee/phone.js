/**
 * The meter of a phone's audio, for media streams as Twilio, SignalWire, Telnyx, Plivo and Vonage have them.
 *
 * Each frame of audio stays here: what leaves is how much was sent and how far the phone has played it, at most five
 * times a second. A phone plays what is queued in order, in real time, from the first byte of each stretch, and never
 * past what was queued. It sends a mark back once the audio before it was played, and also, at once, when a `clear` has
 * discarded it: so a mark counts only where no `clear` came before it.
 */

import { randomId } from "../client.js";
import { Binary, isObject, MalformedFrame, textOf } from "../dialects/dialect.js";
import { asTwilio } from "../dialects/twilio-media-streams.js";
import { CLOCK, FrameQueue, unwaited } from "./frames.js";

/** @typedef {import("../dialects/dialect.js").JsonObject} JsonObject */
/** @typedef {import("../dialects/dialect.js").Side} Side */

/** Between reports, at least, but for one of a `clear`. */
const REPORT_MS = 200;
/** A report follows a `clear` so much later, when the app has said what it makes of it. */
const AFTER_CUT_MS = 600;
/** A mark that is so much later than the earliest ones shows that the phone waited for audio. */
const STALLED_MS = 500;
/** No phone plays faster: marks that are earlier than this say something else. */
const MAX_AHEAD_MS = 1_000;
const USUAL_RATE = 8_000;
const MAX_MARKS = 10_000;
const COMPANDED = ["mulaw", "x-mulaw", "pcmu", "alaw", "x-alaw", "pcma", "ulaw"];
const LINEAR = ["l16", "x-l16", "linear16", "pcm", "lpcm"];

/**
 * How many bytes of a format make a millisecond; null for one that is not known or has no constant rate.
 *
 * @param {any} form
 * @returns {number | null}
 */
export function bytesPerMs(form) {
  if (!isObject(form)) {
    return USUAL_RATE / 1_000;
  }
  const encoding = String(form.encoding || form.contentType || "audio/x-mulaw").toLowerCase();
  const name = encoding.split(";")[0].trim().replace(/^audio\//, "");
  const rate = Number(/;.*rate=(\d+)/.exec(encoding)?.[1] ?? form.sampleRate ?? form.sample_rate ?? USUAL_RATE);
  if (!Number.isInteger(rate) || rate < 1_000 || rate > 192_000) {
    return null;
  }
  if (COMPANDED.includes(name)) {
    return rate / 1_000;
  }
  if (LINEAR.includes(name)) {
    return rate / 500;
  }
  return name === "g722" ? 8 : null;
}

/** Counts what an app sends to a phone, and says how far the phone has played. It has no clock of its own. */
export class PhoneMeter {
  /** @param {string} [stream] its id, until its `start` says another; Vonage's has none */
  constructor(stream) {
    this.stream = stream;
    /** @type {number | null} Bytes per millisecond; null where that is not known: such audio is not measured. */
    this.rate = USUAL_RATE / 1_000;
    this.sentMs = 0;
    /** The position at which the newest stretch begins, and when. */
    this.begun = { position: 0, ts: 0 };
    /** How much later, and earlier, marks of this stretch came than its first byte says. */
    this.stalledMs = 0;
    this.aheadMs = 0;
    /** @type {number | null} How long after its audio a mark comes back, at least. */
    this.earliestMs = null;
    /** @type {{name: string, atMs: number}[]} Marks that were sent, and behind how much audio. */
    this.marks = [];
    /** @type {Map<string, number>} How many of the marks have a name. */
    this.names = new Map();
    /** Whether the stream has stopped: what is sent then is not played. */
    this.isStopped = false;
    /** @type {number | null} When the first audio was sent that is not reported. */
    this.since = null;
    /** @type {number[][]} */
    this.cuts = [];
    /** Whether a `clear` has cut audio, which is to be reported at once. */
    this.hasCut = false;
    this.isChanged = false;
    this.reportedTs = 0;
    this.cutTs = 0;
    /** How much had been sent at the last `clear`. */
    this.clearedMs = 0;
    /** What the last report said is over. */
    this.overMs = 0;
    /** @type {number | null} When to report next, whatever happens. */
    this.askedAt = null;
  }

  /**
   * How much of what was sent is over at a time.
   *
   * @param {number} ts
   */
  atMs(ts) {
    const { position, ts: began } = this.begun;
    return Math.max(this.overMs, Math.min(this.sentMs, position + Math.max(0, ts - began - this.stalledMs)));
  }

  /**
   * Take a frame that crosses the socket; returns it where the dialect wants it. Throws `MalformedFrame`.
   *
   * @param {import("../dialects/dialect.js").RawFrame} frame
   * @param {Side} side
   * @param {number} ts
   * @returns {JsonObject | null}
   */
  take(frame, side, ts) {
    if (frame instanceof Binary) {
      // Vonage's audio
      if (side === "app") {
        this.send(frame.bytes, ts);
      }
      return null;
    }
    if (!isObject(frame)) {
      throw new MalformedFrame("A frame of this dialect is a JSON object.");
    }
    if (frame.event === "media" && side === "vendor") {
      // what the caller says, fifty times a second
      return null;
    }
    const given = asTwilio(frame);
    const { event } = given;
    if (event === "media" && side === "app") {
      this.sendMedia(given.media, ts);
    } else if (event === "mark") {
      const { name } = given.mark;
      const text = typeof name === "string" ? name : (JSON.stringify(name) ?? "null");
      if (side === "vendor") {
        this.passMark(text, ts);
      } else {
        this.sendMark(text);
      }
    } else if (event === "clear" && side === "app") {
      this.clear(ts, this.atMs(ts));
    } else if (event === "stop") {
      // it says so as late as a mark comes back
      this.clear(ts, this.atMs(ts - Math.round(this.earliestMs ?? 0)));
      this.isStopped = true;
    } else if (event === "start") {
      this.stream = textOf(given.streamSid) ?? this.stream;
      this.isStopped = false;
      this.rate = bytesPerMs(given.start.mediaFormat);
    }
    return event === "media" || event === "mark" || event === "clear" ? null : given;
  }

  /**
   * Queue base64 audio, of the stream's format or of one that it names. Throws `MalformedFrame`.
   *
   * @param {any} media
   * @param {number} ts
   */
  sendMedia(media, ts) {
    const payload = media?.payload;
    if (typeof payload !== "string") {
      throw new MalformedFrame("An audio frame has no audio.");
    }
    if ("contentType" in media) {
      this.rate = bytesPerMs(media);
    }
    let length = payload.length;
    while (length > 0 && payload[length - 1] === "=") {
      length -= 1;
    }
    this.send(Math.floor((length * 3) / 4), ts);
  }

  /**
   * @param {number} count bytes
   * @param {number} ts
   */
  send(count, ts) {
    if (this.rate === null) {
      throw new MalformedFrame("Audio of this format is not measured.");
    }
    if (count === 0 || this.isStopped) {
      return;
    }
    if (this.atMs(ts) >= this.sentMs) {
      // the phone was silent
      this.begun = { position: this.sentMs, ts };
      this.stalledMs = 0;
      this.aheadMs = 0;
    }
    this.sentMs += count / this.rate;
    this.since ??= ts;
    this.isChanged = true;
  }

  /** @param {string} name */
  sendMark(name) {
    if (this.marks.length < MAX_MARKS) {
      this.marks.push({ name, atMs: this.sentMs });
      this.names.set(name, (this.names.get(name) ?? 0) + 1);
    }
  }

  /**
   * A mark has come back. Those before it come no more; one that was never sent says nothing.
   *
   * @param {string} name
   * @param {number} ts
   */
  passMark(name, ts) {
    if (!this.names.has(name)) {
      return;
    }
    const place = this.marks.findIndex((mark) => mark.name === name);
    const { atMs } = this.marks[place];
    for (const mark of this.marks.splice(0, place + 1)) {
      const left = (this.names.get(mark.name) ?? 1) - 1;
      if (left > 0) {
        this.names.set(mark.name, left);
      } else {
        this.names.delete(mark.name);
      }
    }
    const { position, ts: began } = this.begun;
    if (atMs <= position) {
      // of an earlier stretch, or discarded: a `clear` begins a stretch behind all that was sent
      return;
    }
    const lateMs = ts - began - (atMs - position);
    if (lateMs < 0) {
      // it plays ahead of our clock, unless it has dropped audio by itself
      const aheadMs = this.aheadMs - lateMs;
      if (aheadMs <= MAX_AHEAD_MS) {
        this.begun = { position: atMs, ts };
        this.stalledMs = 0;
        this.aheadMs = aheadMs;
        this.isChanged = true;
      }
    } else {
      this.earliestMs = Math.min(this.earliestMs ?? lateMs, lateMs);
      const before = this.stalledMs;
      const stalledMs = lateMs - this.earliestMs;
      this.stalledMs = stalledMs > STALLED_MS ? stalledMs : 0;
      this.isChanged ||= this.stalledMs !== before;
    }
  }

  /**
   * Nothing behind a position is played any more.
   *
   * @param {number} ts
   * @param {number} atMs
   */
  clear(ts, atMs) {
    if (this.sentMs > this.clearedMs) {
      this.cuts.push([ts, Math.round(atMs), Math.round(this.sentMs)]);
      this.clearedMs = this.sentMs;
      this.begun = { position: this.sentMs, ts };
      this.stalledMs = 0;
      this.isChanged = true;
      this.hasCut = true;
    }
  }

  // Reports

  /**
   * When the next report is to be made; null if there is nothing to report.
   *
   * @param {number} ts
   * @returns {number | null}
   */
  due(ts) {
    if (this.hasCut && ts >= this.cutTs + REPORT_MS) {
      return ts;
    }
    const times = this.askedAt === null ? [] : [this.askedAt];
    if (this.isChanged) {
      times.push(Math.max(ts, this.reportedTs + REPORT_MS));
    }
    return times.length === 0 ? null : Math.min(...times);
  }

  /**
   * What the dialect gets; null if no audio was ever sent.
   *
   * @param {number} ts
   * @returns {JsonObject | null}
   */
  report(ts) {
    if (this.sentMs === 0) {
      return null;
    }
    const atMs = this.atMs(ts);
    /** @type {JsonObject} */
    const frame = { event: "playback", sent_ms: Math.round(this.sentMs), at_ms: Math.round(atMs) };
    if (this.stream !== undefined) {
      frame.streamSid = this.stream;
    }
    if (this.since !== null) {
      frame.since = this.since;
    }
    if (this.cuts.length > 0) {
      frame.cuts = this.cuts;
    }
    if (this.hasCut) {
      this.cutTs = ts;
    }
    const times = ts >= this.cutTs + AFTER_CUT_MS ? [] : [this.cutTs + AFTER_CUT_MS];
    if (atMs < this.sentMs) {
      // when all is played
      times.push(ts + Math.max(REPORT_MS, Math.round(this.sentMs - atMs) + 1));
    }
    this.askedAt = times.length === 0 ? null : Math.min(...times);
    this.overMs = atMs;
    this.since = null;
    this.cuts = [];
    this.hasCut = false;
    this.isChanged = false;
    this.reportedTs = ts;
    return frame;
  }
}

/** Takes a phone's messages, and forwards reports in place of audio. */
export class PhoneQueue extends FrameQueue {
  meter = new PhoneMeter(randomId());
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  timer = undefined;
  /** When that is. */
  timerTs = Infinity;

  /**
   * @override
   * @param {import("../dialects/dialect.js").RawFrame} raw
   * @param {Side} side
   * @param {number} ts
   */
  reduce(raw, side, ts) {
    const given = this.meter.take(raw, side, ts);
    const due = this.meter.due(ts);
    if (due !== null && (due <= ts || given !== null)) {
      this.report(ts);
    }
    this.setTimer(ts);
    return given === null ? null : this.dialect.reduce(given, side);
  }

  /**
   * @override
   * @param {() => void} job
   */
  after(job) {
    super.after(() => {
      if (this.meter.isChanged) {
        this.report(CLOCK.now());
      }
      job();
    });
  }

  /** @param {number} ts */
  report(ts) {
    const report = this.meter.report(ts);
    const frame = report === null ? null : this.dialect.reduce(report, "app");
    if (frame !== null) {
      this.forward({ frame, side: "app", ts });
    }
  }

  /** @param {number} ts report once that is due */
  setTimer(ts) {
    const due = this.meter.due(ts) ?? Infinity;
    if (due < this.timerTs) {
      clearTimeout(this.timer);
      this.timerTs = due;
      this.timer = unwaited(() => this.onTime(), Math.max(0, due - ts));
    }
  }

  onTime() {
    const ts = CLOCK.now();
    this.timerTs = Infinity;
    if ((this.meter.due(ts) ?? Infinity) <= ts) {
      this.report(ts);
    }
    this.setTimer(ts);
  }
}
