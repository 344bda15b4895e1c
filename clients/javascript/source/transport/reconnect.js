/** Stays connected: makes a new transport for all producers of a client whenever the last one is lost. */
import {
  Blocked,
  Busy,
  CLIENT_FATAL_CLOSES,
  NotUpgraded,
  RequestRefused,
  TRANSIENT_CODES,
  Unreachable,
} from "../errors.js";
import { Backoff } from "../options.js";
import { sleep } from "../waiting.js";
import { FRAME_BYTES, WebsocketConnection, dial, hangUp } from "./connection.js";
import { Outage, displayUrl, withCheck } from "./failures.js";
import { HttpFallback } from "./http-fallback.js";

/** @typedef {import("../options.js").Socket} Socket */

const SERVICE_RESTART = 1012;
const TRY_AGAIN_LATER = 1013;
/** How long the requests under way may keep a websocket waiting that works again. */
const LAST_POSTS_MS = 500;

export class Reconnector {
  /**
   * @param {string} url
   * @param {import("../key.js").CurrentKey} key
   * @param {import("./rest.js").RestClient | null} rest without it there is no fallback to HTTP
   * @param {import("../options.js").Options} options
   * @param {Map<string, import("../producer.js").Producer>} producers the client's own, by `keyOf`
   */
  constructor(url, key, rest, options, producers) {
    this.url = url;
    this.key = key;
    this.rest = rest;
    this.options = options;
    this.producers = producers;
    /** @type {WebsocketConnection | HttpFallback | null} Null while there is no connection. */
    this.transport = null;
    /** Between attempts to connect. */
    this.dialBackoff = new Backoff(options);
    /** Between connections that were made. */
    this.backoff = new Backoff(options);
    this.frameBytes = FRAME_BYTES;
    /** @type {number | null} When the server last stopped answering, Unix ms. */
    this.failingSince = null;
    this.outage = new Outage(url, options.warn);
    this.stopping = new AbortController();
    /** @type {string | undefined} The key of the newest connection. */
    this.shownKey = undefined;
  }

  /** End the connection, and make no other. */
  stop() {
    this.stopping.abort();
  }

  /** Stay connected until `stop`. Throws `ClientError` when the client cannot continue. */
  async run() {
    const { signal } = this.stopping;
    let failures = 0;
    while (!signal.aborted) {
      const socket = await this.connect(() => (failures += 1));
      if (socket === null) continue;
      this.dialBackoff.reset();
      const { connection, disconnect } = await this.serve(socket);
      if (signal.aborted) return;
      const succeeded = connection.madeProgress || disconnect.closeCode === TRY_AGAIN_LATER;
      failures = succeeded ? 0 : failures + 1;
      await this.pauseAfter(connection, disconnect);
    }
  }

  /**
   * One attempt: a socket, or null after a pause. Once enough have failed, events go over HTTP until there is one.
   * @param {() => number} countFailure
   * @returns {Promise<Socket | null>}
   */
  async connect(countFailure) {
    const { signal } = this.stopping;
    try {
      return await this.dial();
    } catch (error) {
      if (signal.aborted) return null;
      if (!(error instanceof Unreachable)) throw error;
      const failures = countFailure();
      this.noteFailure(this.url, error);
      const isBlocked = error instanceof Blocked && !(error instanceof NotUpgraded);
      const isEarly = failures < this.options.fallbackAfter && !isBlocked;
      if (this.rest !== null && !isEarly) return this.runFallback(this.rest, error);
      await sleep(this.dialBackoff.nextMs(this.longestDelayMs(error)), signal);
      return null;
    }
  }

  /** A new connection, and the key for it. Throws as `dial` does. */
  async dial() {
    this.shownKey = await this.key.get(this.options.connectTimeoutMs);
    return dial(this.url, this.options, this.stopping.signal);
  }

  /**
   * Use a websocket until it is lost.
   * @param {Socket} socket
   */
  async serve(socket) {
    const { signal } = this.stopping;
    const noteProgress = () => this.outage.noteWebsocket();
    const connection = new WebsocketConnection(socket, this.producers, this.options, this.frameBytes, noteProgress);
    try {
      if (this.shownKey) connection.authenticate(this.shownKey);
      this.attach(connection);
      return { connection, disconnect: await connection.run(signal) };
    } finally {
      this.transport = null;
      this.frameBytes = connection.nextFrameBytes();
      connection.end(1000, "");
    }
  }

  /** Show the key that is new to a connection that works with the old one. */
  async authenticate() {
    const { transport } = this;
    const key = await this.key.get(this.options.connectTimeoutMs).catch(() => undefined);
    if (key && transport instanceof WebsocketConnection) transport.authenticate(key);
  }

  /** @param {WebsocketConnection | HttpFallback} transport */
  attach(transport) {
    this.transport = transport;
    for (const producer of [...this.producers.values()]) {
      producer.buffer.rewind(); // what the last transport sent may be lost
      transport.openProducer(producer);
    }
  }

  /**
   * Wait before the next connection. Throws `RequestRefused` if the server wants none.
   * @param {WebsocketConnection} connection
   * @param {import("./connection.js").Disconnect} disconnect
   */
  async pauseAfter(connection, { closeCode, code, detail }) {
    const isTransient = TRANSIENT_CODES.has(code) || (code === "token_expired" && this.key.renews);
    if (CLIENT_FATAL_CLOSES.has(closeCode) && !isTransient) {
      throw new RequestRefused(code || `close_${closeCode}`, detail);
    }
    if (connection.madeProgress) {
      this.noteAnswer();
    } else if (this.producers.size) {
      const reason = `the connection ended with ${code || closeCode}: ${detail}`;
      this.noteFailure(this.url, new Unreachable(`${displayUrl(this.url)}: ${reason}`, reason));
    }
    const lostWhileWorking = connection.madeProgress && closeCode !== TRY_AGAIN_LATER && !isTransient;
    if (closeCode === SERVICE_RESTART || lostWhileWorking) this.backoff.reset();
    await sleep(this.backoff.nextMs(), this.stopping.signal);
  }

  /**
   * Upper bound of the delay after a failure: a server that is away is to be found soon after its return.
   * @param {Unreachable} error
   */
  longestDelayMs(error) {
    return error instanceof Busy ? this.options.longestDelayMs : this.options.awayDelayMs;
  }

  noteAnswer() {
    this.failingSince = null;
  }

  /**
   * Warn of a failure. Throws `Unreachable` once the server has not answered for `giveUpAfterMs`.
   * @param {string} url
   * @param {Unreachable} error
   */
  noteFailure(url, error) {
    const patienceMs = this.options.giveUpAfterMs;
    this.failingSince ??= Date.now();
    if (patienceMs !== null && Date.now() - this.failingSince >= patienceMs) {
      throw new Unreachable(`${displayUrl(url)}: ${withCheck(error.reason)}`, error.reason);
    }
    this.outage.noteFailure(displayUrl(url), error.reason);
  }

  /**
   * Send events over HTTP until the websocket works again; returns it, or null when the client stops.
   * @param {import("./rest.js").RestClient} rest
   * @param {Unreachable} error why the websocket does not work
   * @returns {Promise<Socket | null>}
   */
  async runFallback(rest, error) {
    const noteHttp = () => {
      this.noteAnswer();
      this.outage.noteHttp(displayUrl(rest.url));
    };
    const fallback = new HttpFallback(rest, this.options, noteHttp, (lost) => this.noteFailure(rest.url, lost));
    const stopping = new AbortController();
    const posting = fallback.run(stopping.signal);
    const dialing = this.redial(error, stopping.signal);
    try {
      this.attach(fallback);
      await Promise.race([posting, dialing]);
      stopping.abort();
      // Requests under way must end before the websocket opens its producers: that raises their epochs, and a request
      // with the old epoch would be refused as superseded, which is final. One that hangs is given up: its answer is
      // never read, and what it stores is acknowledged again.
      await Promise.race([posting, sleep(LAST_POSTS_MS, this.stopping.signal)]);
      return await dialing;
    } catch (failure) {
      dialing.then((socket) => socket && hangUp(socket), () => {});
      throw failure;
    } finally {
      this.transport = null;
      stopping.abort();
      fallback.cutting.abort();
      posting.catch(() => {});
    }
  }

  /**
   * Try the websocket until it works. Throws `RequestRefused` if the server refuses this client.
   * @param {Unreachable} error
   * @param {AbortSignal} stopping
   * @returns {Promise<Socket | null>}
   */
  async redial(error, stopping) {
    const backoff = new Backoff(this.options);
    const ending = AbortSignal.any([stopping, this.stopping.signal]);
    while (!ending.aborted) {
      const everyMs = error instanceof Blocked ? this.options.websocketEveryMs : this.options.awayDelayMs;
      // spread, so that many clients do not come at the same moment
      await sleep(error instanceof Busy ? backoff.nextMs() : everyMs * (0.5 + Math.random() / 2), ending);
      if (ending.aborted) return null;
      try {
        return await this.dial();
      } catch (failure) {
        if (!(failure instanceof Unreachable)) throw failure;
        error = failure;
        this.outage.noteFailure(displayUrl(this.url), error.reason);
      }
    }
    return null;
  }
}
