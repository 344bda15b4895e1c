/** A session as one producer uses it: events, what is read and changed of it, and its working memory. */
import { ClientError, EventRefused } from "./errors.js";
import { TailReader } from "./tail.js";
import { queryParams, sessionPath } from "./transport/rest.js";

/** @typedef {import("./buffer.js").Ack} Ack */
/** @typedef {import("./transport/rest.js").RestClient} RestClient */

export const NO_REST_URL = "This needs the URL of the REST API: new Client(ingestUrl, { restUrl }).";

/** What is known of a session without waiting. */
export class SessionFacts {
  /** @param {import("./producer.js").Producer} producer */
  constructor(producer) {
    /** @protected */
    this._producer = producer;
  }

  get sessionId() {
    return this._producer.sessionId;
  }

  get producer() {
    return this._producer.name;
  }

  /** The other stack whose frames `recordFrame` sends. */
  get dialect() {
    return this._producer.dialect;
  }

  /** `running` or `ended`, as the server last reported. */
  get state() {
    return this._producer.state;
  }

  /** Whether the server has answered: until then events wait, and have no final numbers. */
  get isOpen() {
    return this._producer.opened;
  }

  /** Why the session takes nothing more; null while it does. */
  get error() {
    return this._producer.error;
  }

  /** How many times this producer has been opened; null if only HTTP was used so far. */
  get epoch() {
    return this._producer.epoch;
  }

  /** The identity of the server's store; null if only HTTP was used so far. */
  get incarnation() {
    return this._producer.incarnation;
  }

  /** The seq of the next event; counted from 1 until the session is open. */
  get nextSeq() {
    return this._producer.buffer.nextSeq;
  }

  /** The number for a new turn: above all turns that the server had, or that this producer has sent. */
  get nextTurn() {
    return this._producer.nextTurn;
  }

  /** Number of events in the buffer. */
  get unacknowledged() {
    return this._producer.buffer.length;
  }

  /** Size of these events in bytes. */
  get unacknowledgedBytes() {
    return this._producer.buffer.size;
  }

  /** Number of events that `record` could not take. */
  get dropped() {
    return this._producer.dropped;
  }

  /** How often `Client.find` has returned it: another part of the program records into it too. */
  get timesFound() {
    return this._producer.timesFound;
  }

  /** How full the buffer is, from 0 to 1. */
  get fullness() {
    const { length, size, maxEvents, maxBytes } = this._producer.buffer;
    return Math.min(1, Math.max(length / maxEvents, size / maxBytes));
  }
}

/** A session as one producer uses it; `Client.session` and `Client.open` make it. */
export class Session extends SessionFacts {
  /**
   * @param {import("./producer.js").Producer} producer
   * @param {(producer: import("./producer.js").Producer) => void} scheduleWakeup
   * @param {RestClient | null} rest
   */
  constructor(producer, scheduleWakeup, rest) {
    super(producer);
    /** @private */
    this._scheduleWakeup = scheduleWakeup;
    /** @private */
    this._rest = rest;
  }

  /**
   * Take an event and return at once; never throws.
   *
   * The event gets the next `seq`, and the current time as `ts` if it has none. An event that cannot be taken is
   * counted in `dropped` and reported to the option `onDropped`; awaiting its ack throws why: `BufferFull`,
   * `EventRefused` (not an event, or too big for a frame), `SessionEnded`, `Superseded`, `Closed`, or the `ClientError`
   * after which the client cannot continue. A `session.end` is taken even if the buffer is full; so is another event
   * that `ends` the session, such as a frame of another stack.
   * @param {Record<string, any>} event
   * @param {{ends?: boolean}} [how]
   * @returns {Ack}
   */
  record(event, how) {
    const ack = this._producer.take(event, how?.ends);
    if (!ack.done) this._scheduleWakeup(this._producer);
    return ack;
  }

  /**
   * Take a frame of the session's `dialect`, as the other stack sends it, and return at once; never throws.
   *
   * It goes as an event of the type `frame`, next to other events, with the same numbers and acks as `record`.
   * @param {unknown} frame the vendor's JSON, or a text where the vendor sends one that is not JSON
   * @param {{from?: "vendor" | "app", ts?: number, id?: string, ends?: boolean}} [envelope] who sent it, and when (Unix
   *   ms); an `id` of its own lets the server ignore a repeat; `ends` says that it ends the session
   * @returns {Ack}
   */
  recordFrame(frame, envelope) {
    if (this.dialect === undefined) {
      const detail = "A frame needs the name of its stack: client.session(id, { dialect }).";
      return this._producer.drop(new EventRefused("unknown_dialect", detail));
    }
    const { from, ts, id, ends } = envelope ?? {};
    return this.record({ type: "frame", dialect: this.dialect, from, ts, id, frame }, { ends });
  }

  /**
   * Wait until the server has answered the open. Throws why it takes no events: `RequestRefused`, `SessionErased`,
   * `SessionEnded`, or the `ClientError` after which the client cannot continue. Nothing needs to wait for it: events
   * are kept in the meantime.
   */
  async ready() {
    await this._producer.ready.promise;
    return this;
  }

  /**
   * Wait until everything recorded so far is acknowledged or refused, at most `timeoutMs`.
   *
   * Throws `TimedOut`, and the `ClientError` after which nothing more can be acknowledged. A refused event throws from
   * its own ack.
   * @param {{timeoutMs?: number | null}} [how]
   */
  async flush({ timeoutMs = null } = {}) {
    await this._producer.flush(timeoutMs);
  }

  /**
   * Send `session.end` and wait for its ack, at most `timeoutMs`. Returns its seq; throws as acks do.
   * @param {{reason?: string, timeoutMs?: number | null}} [how]
   */
  async end({ reason, timeoutMs = null } = {}) {
    return this.record({ type: "session.end", reason }).result(timeoutMs);
  }

  /**
   * The memory: `session_id`, `state`, `started_at`, `ended_at`, `position`, and the messages in `contents`.
   *
   * It shows every event acknowledged before. Times are Unix ms. It takes at most `timeoutMs`, by default
   * `readTimeoutMs`. Throws `RequestRefused`, `Unreachable`, `Closed`.
   * @param {HistoryParams & Timeout} [params]
   * @returns {Promise<Record<string, any>>}
   */
  async history({ timeoutMs, ...params } = {}) {
    return this._read("/history", params, timeoutMs ?? this._options.readTimeoutMs);
  }

  /**
   * The body of the next LLM request, in at most `timeoutMs`, by default `contextTimeoutMs`.
   *
   * Throws `RequestRefused`, `Unreachable`, `Closed`: then use the messages that the program has.
   * @param {ContextParams & Timeout} [params]
   * @returns {Promise<Record<string, any>>}
   */
  async context({ timeoutMs, ...params } = {}) {
    return this._read("/context", params, timeoutMs ?? this._options.contextTimeoutMs);
  }

  /**
   * Each turn's start, end, cause and latencies; with `marks`, also when its parts and its tool calls were. Throws as
   * `history`.
   * @param {{marks?: boolean} & Timeout} [params]
   * @returns {Promise<Record<string, any>[]>}
   */
  async turns({ timeoutMs, ...params } = {}) {
    return (await this._read("/turns", params, timeoutMs ?? this._options.readTimeoutMs)).turns;
  }

  /**
   * What the memory has besides its messages: `summaries`, `forgotten`, `carried`. Throws as `history`.
   * @returns {Promise<Record<string, any>>}
   */
  async memory() {
    return this._read("/memory", {}, this._options.readTimeoutMs);
  }

  /**
   * What happens in the session, as it happens, from the beginning or after an event's `lastEventId`, until it ends. A
   * lost connection is made again, and nothing comes twice. `query` has the parameters of docs/tail.md.
   *
   * Throws `RequestRefused`, `Closed`, and `Unreachable` if the first attempt gets no answer.
   * @param {{query?: Record<string, any>, after?: string | undefined, signal?: AbortSignal | undefined}} [how]
   */
  tail({ query = {}, ...how } = {}) {
    const path = sessionPath(this.sessionId, "/events");
    return new TailReader(this._reader(), path, queryParams(query), { isOfOneSession: true, ...how }).events();
  }

  /**
   * Add messages or tool traces that did not come as events, all or none: `role`, `content`, and what REST takes.
   *
   * Returns `position` and `turn_id`. It is sent once, in at most `readTimeoutMs`; after `Unreachable` it is not known
   * whether they were stored. Throws `RequestRefused`, `Unreachable`, `Closed`.
   * @param {...Record<string, any>} messages
   * @returns {Promise<{position: number, turn_id: number}>}
   */
  async add(...messages) {
    return this._write("POST", "/messages", messages);
  }

  /**
   * Leave messages out of every context: all up to a turn, all but the newest, or everything.
   *
   * Returns `position`, `forgotten` and `remembered`. Throws `TypeError` unless one of the three is given, and what
   * `add` throws.
   * @param {{throughTurn?: number, keepLast?: number, everything?: boolean}} what
   * @returns {Promise<Record<string, any>>}
   */
  async forget({ throughTurn, keepLast, everything }) {
    const asked = { through_turn: throughTurn, keep_last: keepLast, everything: everything || undefined };
    const given = Object.values(asked).filter((value) => value !== undefined);
    if (given.length !== 1) throw new TypeError("say what to forget: throughTurn, keepLast or everything");
    return this._write("POST", "/forget", asked);
  }

  /** The document of the session, or of its user. Throws `ClientError` without a `restUrl`. */
  get workingMemory() {
    return new Documents(this._reader(), sessionPath(this.sessionId, "/working-memory"), this._options.readTimeoutMs);
  }

  /**
   * The session's data, an object of your own. Throws as `history`.
   * @returns {Promise<Record<string, any>>}
   */
  async data() {
    return this._read("/data", {}, this._options.readTimeoutMs);
  }

  /**
   * Merge values into the data; null removes one. Returns the data; throws what `add` throws.
   * @param {Record<string, any>} patch
   * @returns {Promise<Record<string, any>>}
   */
  async updateData(patch) {
    return this._write("PATCH", "/data", patch);
  }

  /** @private */
  get _options() {
    return this._producer.owner.options;
  }

  /** @private */
  _reader() {
    if (this._rest === null) throw new ClientError("no_rest_url", NO_REST_URL);
    return this._rest;
  }

  /**
   * @private
   * @param {string} path
   * @param {Record<string, any>} params
   * @param {number} timeoutMs
   * @returns {Promise<any>}
   */
  async _read(path, params, timeoutMs) {
    return this._reader().get(sessionPath(this.sessionId, path), queryParams(params), timeoutMs);
  }

  /**
   * @private
   * @param {string} method
   * @param {string} path
   * @param {any} json
   * @returns {Promise<any>}
   */
  async _write(method, path, json) {
    const timeoutMs = this._options.readTimeoutMs;
    return this._reader().request(method, sessionPath(this.sessionId, path), { json, timeoutMs });
  }
}

/** @typedef {{timeoutMs?: number}} Timeout in milliseconds, of all that a read takes */
/**
 * Query of `history`; the server's defaults hold for what is absent.
 * @typedef {object} HistoryParams
 * @property {"full" | "standard"} [fields]
 * @property {boolean} [open]
 * @property {number} [after_turn]
 * @property {number} [limit]
 */
/**
 * Query of `context`; the server's defaults hold for what is absent.
 * @typedef {object} ContextParams
 * @property {"openai" | "anthropic" | "gemini"} [style]
 * @property {string[]} [enrich]
 * @property {"one" | "separate"} [system]
 * @property {boolean} [alternate]
 * @property {boolean} [tools]
 * @property {number} [max_history]
 * @property {string} [policy]
 * @property {number} [max_messages]
 * @property {number} [max_tokens]
 * @property {number} [context_window]
 * @property {number} [memories_max_tokens]
 * @property {("fact" | "preference" | "episode" | "summary" | "message")[]} [memories_kinds]
 * @property {"earlier" | "all"} [memories_from]
 * @property {boolean} [usage]
 * @property {boolean} [data]
 * @property {boolean} [fields]
 * @property {boolean} [peek]
 * @property {number} [at]
 * @property {number} [at_turn]
 */

/** @typedef {Record<string, any>} Document `content`, `form`, `version`, `updated_ms` */
/** @typedef {{expected?: number}} Expected the version that the document should have */

/**
 * The document that a session works on: its own, or its user's.
 *
 * Each request takes at most `readTimeoutMs`. A change is sent once: after `Unreachable` it is not known whether it was
 * stored. With `expected` it is safe to try again. All throw `RequestRefused` (`precondition_failed` for another
 * version), `Unreachable`, `Closed`.
 */
export class Documents {
  /**
   * @param {RestClient} rest
   * @param {string} path
   * @param {number} timeoutMs
   */
  constructor(rest, path, timeoutMs) {
    /** @private */
    this._rest = rest;
    /** @private */
    this._path = path;
    /** @private */
    this._timeoutMs = timeoutMs;
  }

  /**
   * The document, or a version of it.
   * @param {number} [version]
   * @returns {Promise<Document>}
   */
  async read(version) {
    return this._rest.get(this._path, queryParams({ version }), this._timeoutMs);
  }

  /**
   * Merge an object into the document, or add a text below it; returns the new document.
   * @param {string | Record<string, any>} content
   * @param {Expected} [how]
   * @returns {Promise<Document>}
   */
  async append(content, how) {
    return this._change("PATCH", { content }, how);
  }

  /**
   * Replace the document; returns the new one.
   * @param {string | Record<string, any>} content
   * @param {Expected} [how]
   * @returns {Promise<Document>}
   */
  async replace(content, how) {
    return this._change("PUT", { content }, how);
  }

  /**
   * Empty the document; returns the new one.
   * @param {Expected} [how]
   * @returns {Promise<Document>}
   */
  async clear(how) {
    return this._change("DELETE", undefined, how);
  }

  /**
   * The tools with which an LLM maintains the document, as OpenAI defines tools.
   * @returns {Promise<Record<string, any>[]>}
   */
  async tools() {
    return (await this._rest.get(`${this._path}/tools`, {}, this._timeoutMs)).tools;
  }

  /**
   * Execute an LLM's tool call; returns the tool message.
   * @param {Record<string, any>} toolCall
   * @returns {Promise<Record<string, any>>}
   */
  async execute(toolCall) {
    return this._rest.request("POST", `${this._path}/tools`, { json: toolCall, timeoutMs: this._timeoutMs });
  }

  /**
   * @private
   * @param {string} method
   * @param {Record<string, any> | undefined} json
   * @param {Expected} [how]
   * @returns {Promise<Document>}
   */
  async _change(method, json, { expected } = {}) {
    /** @type {Record<string, string>} */
    const headers = expected === undefined ? {} : { "If-Match": `"${expected}"` };
    return this._rest.request(method, this._path, { json, headers, timeoutMs: this._timeoutMs });
  }
}
