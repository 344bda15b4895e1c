/** The client: makes sessions, and hands what they record to one connection. */
import { ClientError, Closed, RequestRefused, Unacknowledged, Unreachable, seconds } from "./errors.js";
import { CurrentKey } from "./key.js";
import { Memories } from "./memories.js";
import { DroppedEvents, exposition } from "./metrics.js";
import { checkNames, settled } from "./options.js";
import { Producer, keyOf } from "./producer.js";
import { NO_REST_URL, Session } from "./session.js";
import { brokenLimit, utf8Bytes } from "./strict-json.js";
import { TailReader } from "./tail.js";
import { WebsocketConnection, withPath } from "./transport/connection.js";
import { TIMED_OUT, displayUrl, withCheck } from "./transport/failures.js";
import { Reconnector } from "./transport/reconnect.js";
import { RestClient, checkRestUrl, inPath, queryParams, readLines, sessionPath } from "./transport/rest.js";
import { sleep, within } from "./waiting.js";

const SESSION_ID = /^(?!\.\.?$)[A-Za-z0-9._:-]{1,128}$/;

/** @typedef {import("./key.js").Key} Key */
/**
 * @typedef {object} SessionOptions
 * @property {string} [producer] the name of this process, when several report on one call; `main` when missing
 * @property {Record<string, any>} [config] the configuration of a session that does not exist yet
 * @property {string} [dialect] the other stack whose frames `recordFrame` sends
 */

/** Sends events into sessions of one server, and reads their memories. */
export class Client {
  /**
   * Throws `TypeError` and `RangeError` for a URL, a key or an option that cannot be one.
   * @param {string} ingestUrl ws:// or wss://; the path /v1/ingest is added if there is none
   * @param {{restUrl?: string | undefined, key?: Key | undefined} & Partial<import("./options.js").Options>} [options]
   *   `restUrl` is the root of the REST API; without it there is no fallback to HTTP and no reading. A page in a
   *   browser never has a key, but a session token.
   */
  constructor(ingestUrl, { restUrl, key, ...options } = {}) {
    this.ingestUrl = withPath(ingestUrl);
    this.options = settled(options);
    if (!this.options.WebSocket) {
      throw new TypeError("there is no WebSocket here: give one, such as that of the package ws: { WebSocket }, or run Node 20 with --experimental-websocket");
    }
    /** @private */
    this._key = new CurrentKey(key);
    /** @private */
    this._rest = restUrl === undefined ? null : new RestClient(checkRestUrl(restUrl), this._key, this.options);
    /** @type {ClientError | null} Why the client cannot continue. */
    this.error = null;
    /** @private */
    this._drops = new DroppedEvents(this.options);
    /** @private @type {Map<string, Producer>} */
    this._producers = new Map();
    /** @private */
    this._reconnector = new Reconnector(this.ingestUrl, this._key, this._rest, this.options, this._producers);
    /** @private @type {Promise<void> | null} */
    this._running = null;
  }

  // For users

  /** How events go to the server now: "websocket", "http", or null while there is no connection. */
  get transport() {
    const { transport } = this._reconnector;
    if (transport === null) return null;
    return transport instanceof WebsocketConnection ? "websocket" : "http";
  }

  /** How many events `record` could not take, in all sessions, by the code of the error. */
  get dropped() {
    return Object.fromEntries(this._drops.counts);
  }

  /** Dropped and unacknowledged events, and the connection, in the text format of Prometheus. */
  metrics() {
    return exposition(this.dropped, this._producers.values(), this.transport);
  }

  /**
   * A new or existing session, at once: what is recorded before the server has answered is kept, and sent then.
   *
   * Throws `TypeError` for an id, a name or an option that cannot be one, and for a session that this client has open already for
   * this producer; `RequestRefused` for a configuration that no frame can hold.
   * @param {string} [sessionId] a random one when missing
   * @param {SessionOptions} [options]
   * @returns {Session}
   */
  session(sessionId = randomId(), options = {}) {
    checkNames(options, ["producer", "config", "dialect"]);
    const { producer = "main", config, dialect } = options;
    const made = this._newProducer(sessionId, producer, config);
    made.dialect = dialect;
    if (this.error !== null) {
      made.fail(this.error);
    } else {
      this._start();
      this._producers.set(made.key, made);
      this._reconnector.transport?.openProducer(made);
    }
    return this._session(made);
  }

  /**
   * As `session`, and wait for the server's answer, at most `timeoutMs`, by default `openTimeoutMs`.
   *
   * Throws also `Unreachable` with the addresses, the reasons and what to check; `RequestRefused`, `SessionErased`, and
   * `SessionEnded`: to read a session that has ended, use `session`.
   * @param {string} [sessionId]
   * @param {SessionOptions & {timeoutMs?: number | null}} [options]
   * @returns {Promise<Session>}
   */
  async open(sessionId, { timeoutMs = this.options.openTimeoutMs, ...options } = {}) {
    if (this.error !== null) throw this.error;
    const session = this.session(sessionId, options);
    const producer = /** @type {Producer} */ (this._producers.get(keyOf(session.sessionId, session.producer)));
    try {
      return await within(session.ready(), timeoutMs, () => this._notOpened(timeoutMs ?? 0));
    } catch (error) {
      this._remove(producer);
      throw error;
    }
  }

  /**
   * Whether this client has a session open, or is about to, for this producer.
   * @param {string} sessionId
   * @param {string} [producer]
   */
  isOpen(sessionId, producer = "main") {
    return this._producers.has(keyOf(sessionId, producer));
  }

  /**
   * What was heard in earlier calls: the body of `POST /v1/memories/search`, whose fields are the parameters.
   *
   * Takes at most `readTimeoutMs`. Throws `RequestRefused`, `Unreachable`, `Closed`; `ClientError` without a `restUrl`.
   * @param {string} query
   * @param {Record<string, any>} [params]
   * @returns {Promise<Record<string, any>>}
   */
  async search(query, params = {}) {
    const timeoutMs = this.options.readTimeoutMs;
    return this._reader().request("POST", "/v1/memories/search", { json: { query, ...params }, timeoutMs });
  }

  /** Memories that last beyond a call. Throws `ClientError` without a `restUrl`. */
  get memories() {
    return new Memories(this._reader(), this.options.readTimeoutMs);
  }

  /**
   * What happens in the sessions that the query of docs/tail.md names, as it happens, until `signal` is aborted.
   *
   * A lost connection is made again, after an event's `lastEventId`. Throws `RequestRefused`, `Closed`, and
   * `Unreachable` if the first attempt gets no answer; `ClientError` without a `restUrl`.
   * @param {{query?: Record<string, any>, after?: string | undefined, signal?: AbortSignal | undefined}} [how]
   */
  tail({ query = {}, ...how } = {}) {
    return new TailReader(this._reader(), "/v1/events", queryParams(query), { isOfOneSession: false, ...how }).events();
  }

  /**
   * A call as a document (docs/exports.md): `vcon`, `webvtt`, `srt`, `markdown`, `csv` or `jsonl`. Throws as `search`.
   * @param {string} sessionId
   * @param {{format?: string}} [how]
   */
  async export(sessionId, { format = "vcon" } = {}) {
    const how = { query: { format }, timeoutMs: this.options.readTimeoutMs };
    return this._reader().text(sessionPath(sessionId, "/export"), how);
  }

  /**
   * Many calls as documents, line by line (docs/exports.md). The last line is of the type `end`. Throws as `search`;
   * `Unreachable` also for an export that is cut short.
   * @param {{format?: string} & import("./transport/rest.js").CallFilters} [how]
   */
  exportCalls({ format = "vcon", ...filters } = {}) {
    return readLines(this._reader(), "/v1/exports", { format, ...filters });
  }

  /**
   * All that is stored of a user, line by line (docs/privacy.md); with `events`, journals too. It needs a key with the
   * scope `admin`. Throws as `exportCalls`.
   * @param {string} userId
   * @param {{events?: boolean}} [how]
   */
  exportUser(userId, { events } = {}) {
    return readLines(this._reader(), `/v1/users/${inPath(userId)}/export`, { events });
  }

  /**
   * A session that this client has open, for another part of the program that is the same producer; null otherwise.
   * @param {string} sessionId
   * @param {string} [producer]
   * @returns {Session | null}
   */
  find(sessionId, producer = "main") {
    const found = this._producers.get(keyOf(sessionId, producer));
    if (found === undefined) return null;
    found.timesFound += 1;
    return this._session(found);
  }

  /**
   * Use another key or session token from now on, also on the connection that there is: the server closes it when a
   * token expires.
   * @param {Key} key
   */
  setKey(key) {
    this._key.set(key);
    this._reconnector.authenticate();
  }

  /**
   * Wait until everything is acknowledged, at most `timeoutMs` (`closeTimeoutMs` by default), then close.
   *
   * Throws `Unacknowledged` if some events were not acknowledged; their acks throw `Closed`.
   * @param {{timeoutMs?: number}} [how]
   */
  async close({ timeoutMs = this.options.closeTimeoutMs } = {}) {
    const producers = [...this._producers.values()].filter((producer) => producer.opened || producer.buffer.length);
    if (this.error === null && producers.length) {
      const flushes = producers.map((producer) => producer.flush().catch(() => {}));
      const waiting = new AbortController();
      await Promise.race([Promise.all(flushes), sleep(timeoutMs, waiting.signal)]);
      waiting.abort();
    }
    /** @type {Record<string, number>} */
    const left = {};
    for (const { sessionId, buffer } of producers) {
      if (buffer.length) left[sessionId] = (left[sessionId] ?? 0) + buffer.length;
    }
    this._fail(new Closed());
    this._reconnector.stop();
    this._rest?.close();
    await this._running;
    if (Object.keys(left).length) throw new Unacknowledged(left);
  }

  /** @private */
  _reader() {
    if (this._rest === null) throw new ClientError("no_rest_url", NO_REST_URL);
    return this._rest;
  }

  // Producers

  /**
   * @private
   * @param {Producer} producer
   */
  _session(producer) {
    return new Session(producer, (one) => this._scheduleWakeup(one), this._rest);
  }

  /**
   * @private
   * @param {string} sessionId
   * @param {string} name
   * @param {Record<string, any> | undefined} config
   */
  _newProducer(sessionId, name, config) {
    if (!SESSION_ID.test(sessionId)) throw new TypeError("a session id must be 1 to 128 characters of A-Za-z0-9._:-, but not . or ..");
    if (typeof name !== "string" || name.length < 1 || name.length > 128) {
      throw new TypeError("a producer's name must be 1 to 128 characters long");
    }
    if (this._producers.has(keyOf(sessionId, name))) {
      throw new TypeError(`this client has session '${sessionId}' open already, for producer '${name}'`);
    }
    const owner = { options: this.options, drops: this._drops, onFinished: (/** @type {Producer} */ one) => this._remove(one) };
    const producer = new Producer(sessionId, name, config, owner);
    const frame = JSON.stringify(producer.openFrame());
    const broken = brokenLimit(frame, utf8Bytes(frame));
    if (broken !== null) throw new RequestRefused(...broken);
    producer.unansweredOpens = 0;
    return producer;
  }

  /**
   * @private
   * @param {Producer} producer
   */
  _remove(producer) {
    if (this._producers.get(producer.key) === producer) this._producers.delete(producer.key);
    this._reconnector.transport?.remove(producer);
  }

  /**
   * Wake the transport for the events that a producer has taken, once for all that it takes until then.
   * @private
   * @param {Producer} producer
   */
  _scheduleWakeup(producer) {
    if (producer.wakeupPending) return;
    producer.wakeupPending = true;
    queueMicrotask(() => {
      producer.wakeupPending = false;
      this._reconnector.transport?.schedule(producer);
    });
  }

  /**
   * The error for an open without an answer in time.
   * @private
   * @param {number} timeoutMs
   */
  _notOpened(timeoutMs) {
    const late = `${displayUrl(this.ingestUrl)}: ${withCheck(`${TIMED_OUT} after ${seconds(timeoutMs)}`)}`;
    const reason = this.transport === "websocket" ? late : this._reconnector.outage.explain(timeoutMs);
    return new Unreachable(`The session was not opened within ${seconds(timeoutMs)}. ${reason}`, reason);
  }

  // The connection

  /** @private */
  _start() {
    this._running ??= this._run();
  }

  /** @private */
  async _run() {
    try {
      await this._reconnector.run();
    } catch (error) {
      // the outermost edge: acks must not wait for a client that has stopped
      this._fail(error instanceof ClientError ? error : new ClientError("internal", `The client has failed: ${error}.`));
    }
  }

  /**
   * Fail all sessions with the first error of the client.
   * @private
   * @param {ClientError} error
   */
  _fail(error) {
    this.error ??= error;
    for (const producer of [...this._producers.values()]) producer.fail(this.error);
  }
}

/** 32 hexadecimal digits; `crypto.randomUUID` is missing in pages without TLS. */
export function randomId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
