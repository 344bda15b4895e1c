/**
 * How much a client buffers, and how it retries. Times are in milliseconds.
 *
 * Delays between attempts have full jitter: each is a random time between zero and the delay given here.
 *
 * @typedef {object} Options
 * @property {number} maxEvents unacknowledged events that each session may hold; one more is not taken (`BufferFull`)
 * @property {number} maxBytes the same limit in bytes, as the events are sent
 * @property {number} firstDelayMs delay before the second attempt to connect; it doubles with each further attempt
 * @property {number} longestDelayMs upper bound of that delay while the server answers, and asks for patience
 * @property {number} awayDelayMs upper bound of that delay while the server cannot be reached
 * @property {number | null} giveUpAfterMs after so long without any answer the client fails with `Unreachable`; null: never
 * @property {number} fallbackAfter failed websocket attempts after which events go over HTTP
 * @property {number} websocketEveryMs how often the websocket is tried again while something on the way forbids it
 * @property {number | null} openTimeoutMs how long `open` waits, in all; null means for ever
 * @property {number} contextTimeoutMs how long `context` takes at most, in all: connecting, TLS, every attempt
 * @property {number} readTimeoutMs the same for everything else that is read or changed
 * @property {number} readAttempts attempts to read within that time
 * @property {number} connectTimeoutMs for one attempt to connect
 * @property {number} silenceMs after so long without the answer that is due, the connection counts as dead
 * @property {number} requestTimeoutMs for one HTTP request that sends events
 * @property {number} closeTimeoutMs how long `close` waits for acks
 * @property {OnDropped | null} onDropped called for each event that `record` could not take; it must be quick
 * @property {(sentence: string) => void} warn gets what the operator should see; `console.warn` without it
 * @property {SocketConstructor | undefined} WebSocket the platform's own without it; Node 20 has none: give it that of `ws`
 * @property {typeof globalThis.fetch} fetch the platform's own without it
 */
/** @typedef {(sessionId: string, producer: string, error: import("./errors.js").ClientError) => unknown} OnDropped */
/**
 * What the client uses of a websocket; browsers, Node 22 and the package `ws` have it.
 * @typedef {object} Socket
 * @property {number} bufferedAmount
 * @property {((event: any) => void) | null} onopen
 * @property {((event: any) => void) | null} onmessage
 * @property {((event: any) => void) | null} onerror
 * @property {((event: any) => void) | null} onclose
 * @property {(data: string) => void} send
 * @property {(code?: number, reason?: string) => void} close
 */
/** @typedef {new (url: string) => Socket} SocketConstructor */

const DEFAULTS = {
  maxEvents: 10_000,
  maxBytes: 8 * 1024 * 1024,
  firstDelayMs: 500,
  longestDelayMs: 20_000,
  awayDelayMs: 1_000,
  giveUpAfterMs: null,
  fallbackAfter: 3,
  websocketEveryMs: 30_000,
  openTimeoutMs: 3_000,
  contextTimeoutMs: 1_000,
  readTimeoutMs: 3_000,
  readAttempts: 2,
  connectTimeoutMs: 5_000,
  silenceMs: 20_000,
  requestTimeoutMs: 15_000,
  closeTimeoutMs: 5_000,
  onDropped: null,
};
const AT_LEAST_ONE = /** @type {const} */ (["maxEvents", "maxBytes", "readAttempts"]);

/**
 * All options, the given ones and the defaults. Throws `RangeError` and `TypeError` for those that cannot be.
 * @param {Partial<Options>} given
 * @returns {Options}
 */
export function settled(given) {
  const platform = {
    warn: (/** @type {string} */ sentence) => console.warn(sentence),
    WebSocket: /** @type {SocketConstructor | undefined} */ (globalThis.WebSocket),
    fetch: (/** @type {any} */ input, /** @type {any} */ init) => globalThis.fetch(input, init),
  };
  checkNames(given, [...Object.keys(DEFAULTS), ...Object.keys(platform)]);
  const set = Object.entries(given).filter(([, value]) => value !== undefined);
  /** @type {Options} */
  const options = { ...DEFAULTS, ...platform, ...Object.fromEntries(set) };
  for (const name of AT_LEAST_ONE) {
    if (!(options[name] >= 1)) throw new RangeError(`${name} must be at least 1`);
  }
  return options;
}

/**
 * Throw `TypeError` for an option that there is not.
 * @param {object} given
 * @param {string[]} known
 */
export function checkNames(given, known) {
  const unknown = Object.keys(given).find((name) => !known.includes(name));
  if (unknown === undefined) return;
  const settings = known.includes("config") ? "; settings of a session go into config" : "";
  throw new TypeError(`there is no option ${unknown}: they are ${known.join(", ")}${settings}`);
}

/** Delays between attempts: exponential, bounded, with full jitter. */
export class Backoff {
  /**
   * @param {Pick<Options, "firstDelayMs" | "longestDelayMs">} options
   * @param {() => number} [random]
   */
  constructor(options, random = Math.random) {
    this.firstMs = options.firstDelayMs;
    this.longestMs = options.longestDelayMs;
    this.random = random;
    this.attempts = 0;
  }

  /** Start again with the first delay. */
  reset() {
    this.attempts = 0;
  }

  /**
   * How long to wait before the next attempt, in milliseconds.
   * @param {number} [longestMs] lowers the upper bound
   */
  nextMs(longestMs = Infinity) {
    const ceiling = Math.min(this.longestMs, longestMs, this.firstMs * 2 ** Math.min(this.attempts, 60));
    this.attempts += 1;
    return ceiling * this.random();
  }
}
