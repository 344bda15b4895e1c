/** The REST API for a client: answers as JSON, errors as exceptions. */
import { Closed, RequestRefused, Unreachable, seconds } from "../errors.js";
import { Backoff } from "../options.js";
import { sleep } from "../waiting.js";
import { TIMED_OUT, displayUrl, unreachable } from "./failures.js";

const NO_CONTENT = 204;
/** How long an answer in pieces may pause before it counts as lost. */
export const SILENCE_MS = 60_000;

/**
 * @typedef {object} RequestParts
 * @property {Record<string, string>} [query]
 * @property {string} [body]
 * @property {any} [json] instead of a body
 * @property {Record<string, string>} [headers]
 * @property {number} [timeoutMs]
 * @property {AbortSignal} [signal]
 */

/** Sends requests to one server. */
export class RestClient {
  /**
   * @param {string} url its root; a path in it is kept
   * @param {import("../key.js").CurrentKey} key
   * @param {import("../options.js").Options} options
   */
  constructor(url, key, options) {
    this.url = url.replace(/\/+$/, "");
    this.key = key;
    this.options = options;
    this.closing = new AbortController();
  }

  /** End what is under way. What is asked for later throws `Closed`. */
  close() {
    this.closing.abort();
  }

  /**
   * Send one request, without retries. Throws `RequestRefused` for an error, `Unreachable` if no answer came, `Closed`.
   * @param {string} method
   * @param {string} path
   * @param {RequestParts} [parts]
   * @returns {Promise<any>}
   */
  async request(method, path, parts = {}) {
    const { status, text } = await this.fetch(method, path, parts);
    return decodeAnswer(status, text);
  }

  /**
   * GET an answer that is not JSON. Throws as `request`.
   * @param {string} path
   * @param {RequestParts} parts
   */
  async text(path, parts) {
    const { status, text } = await this.fetch("GET", path, parts);
    if (status !== 200) decodeAnswer(status, text);
    return text;
  }

  /**
   * The status and the body of an answer. Throws `Unreachable`, `Closed`.
   * @param {string} method
   * @param {string} path
   * @param {RequestParts} parts
   */
  async fetch(method, path, parts) {
    const timeoutMs = parts.timeoutMs ?? this.options.requestTimeoutMs;
    const url = this.address(path, parts.query);
    const timeout = new AbortController();
    const timer = setTimeout(() => timeout.abort(), timeoutMs);
    try {
      const response = await this.send(method, url, parts, timeout);
      return { status: response.status, text: await response.text() };
    } catch (error) {
      if (this.closing.signal.aborted) throw new Closed();
      throw error instanceof Unreachable ? error : unreachable(url, error, timeoutMs, method);
    } finally {
      clearTimeout(timer);
      timeout.abort();
    }
  }

  /**
   * Send a request; `stopping` ends it, and so do the caller's signal and the end of the client.
   * @param {string} method
   * @param {string} url
   * @param {RequestParts} parts
   * @param {AbortController} stopping
   */
  async send(method, url, parts, stopping) {
    const stop = () => stopping.abort();
    for (const signal of [this.closing.signal, parts.signal]) {
      if (signal?.aborted) stop();
      signal?.addEventListener("abort", stop);
    }
    stopping.signal.addEventListener("abort", () => {
      for (const signal of [this.closing.signal, parts.signal]) signal?.removeEventListener("abort", stop);
    });
    const key = await this.key.get(parts.timeoutMs ?? this.options.requestTimeoutMs);
    const headers = { ...(key ? { Authorization: `Bearer ${key}` } : {}), ...parts.headers };
    const body = parts.json === undefined ? parts.body : JSON.stringify(parts.json);
    return this.options.fetch(url, { method, headers, body, redirect: "manual", signal: stopping.signal });
  }

  /**
   * GET an answer as it comes, in pieces of text; not repeated. Throws as `request`.
   * @param {string} path
   * @param {RequestParts & {silenceMs?: number, onAnswer?: () => void}} parts
   * @returns {AsyncGenerator<string, void>}
   */
  async *pieces(path, parts) {
    const url = this.address(path, parts.query);
    const silenceMs = parts.silenceMs ?? SILENCE_MS;
    const stopping = new AbortController();
    let timer = setTimeout(() => stopping.abort(), parts.timeoutMs ?? this.options.requestTimeoutMs);
    try {
      const response = await this.send("GET", url, parts, stopping);
      if (response.status !== 200) {
        decodeAnswer(response.status, await response.text());
        throw new RequestRefused("over", "Nothing more comes.", response.status);
      }
      parts.onAnswer?.();
      const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
      const decoder = new TextDecoder();
      while (true) {
        clearTimeout(timer);
        timer = setTimeout(() => stopping.abort(), silenceMs);
        const { done, value } = await reader.read();
        if (done) return;
        yield decoder.decode(value, { stream: true });
      }
    } catch (error) {
      if (error instanceof RequestRefused || error instanceof Unreachable) throw error;
      if (this.closing.signal.aborted) throw new Closed();
      throw unreachable(url, error, silenceMs, "GET");
    } finally {
      clearTimeout(timer);
      stopping.abort();
    }
  }

  /**
   * @param {string} path
   * @param {Record<string, string>} [query]
   */
  address(path, query) {
    const params = new URLSearchParams(query).toString();
    return this.url + path + (params ? `?${params}` : "");
  }

  /**
   * GET within `timeoutMs`, whatever the network does. Throws `RequestRefused`, `Unreachable`, `Closed`.
   *
   * Of `readAttempts`, the next begins when the last has failed, or has its share of the time without an answer. It
   * then runs alongside, since the last may have been sent into a connection that is dead. The first answer counts.
   * @param {string} path
   * @param {Record<string, string>} query
   * @param {number} timeoutMs
   * @returns {Promise<any>}
   */
  async get(path, query, timeoutMs) {
    if (this.closing.signal.aborted) throw new Closed();
    const stopping = new AbortController();
    let isLate = false;
    const timer = setTimeout(() => {
      isLate = true;
      stopping.abort();
    }, timeoutMs);
    try {
      return await this.firstAnswer(path, { query, timeoutMs, signal: stopping.signal });
    } catch (error) {
      if (!isLate || !(error instanceof Unreachable)) throw error;
      throw new Unreachable(`GET ${displayUrl(this.url + path)}: ${TIMED_OUT} after ${seconds(timeoutMs)}.`);
    } finally {
      clearTimeout(timer);
      stopping.abort();
    }
  }

  /**
   * Make the attempts; the signal ends those that still run.
   * @param {string} path
   * @param {RequestParts & {timeoutMs: number, signal: AbortSignal}} parts
   */
  async firstAnswer(path, parts) {
    const shareMs = parts.timeoutMs / this.options.readAttempts;
    const backoff = new Backoff(this.options);
    /** @type {Set<Promise<{answer?: any, error?: unknown}>>} */
    const running = new Set();
    /** @type {unknown} */
    let failure = new Unreachable("No attempt was made.");
    for (let later = this.options.readAttempts - 1; later >= 0; later -= 1) {
      const attempt = outcomeOf(this.request("GET", path, parts));
      running.add(attempt);
      attempt.then(() => running.delete(attempt));
      while (running.size) {
        const share = later ? sleep(shareMs, parts.signal).then(() => null) : new Promise(() => {});
        const outcome = /** @type {{answer?: any, error?: unknown} | null} */ (await Promise.race([...running, share]));
        if (outcome === null) break;
        if (outcome.error === undefined) return outcome.answer;
        if (!(outcome.error instanceof Unreachable)) throw outcome.error;
        failure = outcome.error;
      }
      if (parts.signal.aborted) break;
      if (later && !running.size) await sleep(backoff.nextMs(shareMs / 2), parts.signal);
    }
    throw failure;
  }
}

/**
 * What came of a promise, without throwing.
 * @param {Promise<any>} promise
 * @returns {Promise<{answer?: any, error?: unknown}>}
 */
function outcomeOf(promise) {
  return promise.then(
    (answer) => ({ answer }),
    (error) => ({ error }),
  );
}

/**
 * The root of a REST API. Throws `TypeError` unless it is one.
 * @param {string} url
 */
export function checkRestUrl(url) {
  const parts = URL.canParse(url) ? new URL(url) : null;
  if (parts === null || !["http:", "https:"].includes(parts.protocol) || parts.port === "0") {
    throw new TypeError("the REST URL must begin with http:// or https:// and a host");
  }
  if (parts.username || parts.password) throw new TypeError("the REST URL must not have a user or a password: give a key");
  return url;
}

/**
 * The JSON of an answer; null for one without content. Throws `RequestRefused` unless it is a success of these.
 * @param {number} status
 * @param {string} text
 * @returns {any}
 */
export function decodeAnswer(status, text) {
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    // not ours
  }
  if (status >= 200 && status < 300 && (body !== null || (status === NO_CONTENT && !text))) return body;
  const problem = typeof body === "object" && body !== null && !Array.isArray(body) ? body : {};
  const detail = problem.detail ?? `The answer, with HTTP status ${status}, did not come from voicemem's REST API.`;
  throw new RequestRefused(String(problem.reason ?? `http_${status}`), String(detail), status, problem);
}

/**
 * An id as a segment of a path. Throws a `TypeError` for `.` and `..`: every URL takes these out, quoted ones too, so
 * that the path would be another one, such as that of all users' memories.
 * @param {string} id
 */
export function inPath(id) {
  if (id === "." || id === "..") throw new TypeError("an id in a path cannot be . or ..");
  return encodeURIComponent(id);
}

/**
 * The path of a session, or of something in it; the id is quoted.
 * @param {string} sessionId
 * @param {string} [rest]
 */
export function sessionPath(sessionId, rest = "") {
  return `/v1/sessions/${inPath(sessionId)}${rest}`;
}

/**
 * Arguments as query parameters: what is null or undefined is left out, the items of a list are joined with commas.
 * @param {Record<string, any>} params
 * @returns {Record<string, string>}
 */
export function queryParams(params) {
  const given = Object.entries(params).filter(([, value]) => value !== null && value !== undefined);
  return Object.fromEntries(given.map(([name, value]) => [name, String(value)]));
}

/**
 * Filters of the calls to export. Times are Unix ms.
 * @typedef {object} CallFilters
 * @property {"running" | "ended"} [state]
 * @property {string} [user_id]
 * @property {string} [label]
 * @property {number} [started_after]
 * @property {number} [started_before]
 */

/**
 * The lines of an export, the last of which is of the type `end`. Throws `Unreachable` if it does not come.
 * @param {RestClient} rest
 * @param {string} path
 * @param {Record<string, any>} query
 * @returns {AsyncGenerator<Record<string, any>, void>}
 */
export async function* readLines(rest, path, query) {
  let unfinished = "";
  for await (const piece of rest.pieces(path, { query: queryParams(query) })) {
    const lines = (unfinished + piece).split("\n");
    unfinished = /** @type {string} */ (lines.pop());
    for (const line of lines) {
      const row = JSON.parse(line);
      yield row;
      if (row.type === "end") return;
    }
  }
  throw new Unreachable(`GET ${displayUrl(rest.address(path))}: the export was cut short.`);
}
