/** Makes websocket connections; what comes instead of one, as errors. */
import { Blocked, RequestRefused, Unreachable, isTransient, passingError, seconds } from "../errors.js";
import { hangUp } from "./connection.js";
import { HTTP_STATUS, REFUSED_BY_SOCKET, TIMED_OUT, displayUrl, isNode, unreachable } from "./failures.js";

const PATH = "/v1/ingest";
/** Of a path that has no websocket for this request, although voicemem answers it. */
const UPGRADE_REQUIRED = 426;

/**
 * A new connection. Throws `Unreachable`, `Blocked`, and `RequestRefused` if trying again is useless.
 * @param {string} url
 * @param {import("../options.js").Options} options
 * @param {AbortSignal} signal
 * @returns {Promise<import("../options.js").Socket>}
 */
export async function dial(url, options, signal) {
  const { WebSocket: Constructor } = options;
  if (Constructor === undefined) throw new Error("there is no WebSocket here"); // `Client` checks it
  const socket = new Constructor(url);
  const failure = await opened(socket, url, options.connectTimeoutMs, signal);
  if (failure === null) return socket;
  hangUp(socket);
  throw signal.aborted || !isNode() ? failure : await explained(failure, url, options);
}

/**
 * Wait until a socket is open; why it is not, otherwise.
 * @param {import("../options.js").Socket} socket
 * @param {string} url
 * @param {number} timeoutMs
 * @param {AbortSignal} signal
 * @returns {Promise<Unreachable | null>}
 */
function opened(socket, url, timeoutMs, signal) {
  return new Promise((resolve) => {
    /** @param {string | null} reason */
    const end = (reason) => {
      clearTimeout(timer);
      signal.removeEventListener("abort", abort);
      resolve(reason === null ? null : new Unreachable(`${displayUrl(url)}: ${reason}.`, reason));
    };
    const abort = () => end("the client was closed");
    const timer = setTimeout(() => end(`${TIMED_OUT} after ${seconds(timeoutMs)}`), timeoutMs);
    signal.addEventListener("abort", abort);
    socket.onopen = () => end(null);
    socket.onerror = () => end(REFUSED_BY_SOCKET);
    socket.onclose = () => end(REFUSED_BY_SOCKET);
  });
}

/**
 * Why a socket failed, found by a request to the same address: sockets of JavaScript do not say.
 * @param {Unreachable} failure
 * @param {string} url
 * @param {import("../options.js").Options} options
 * @returns {Promise<Error>}
 */
async function explained(failure, url, options) {
  if (!failure.reason.startsWith(REFUSED_BY_SOCKET)) return failure;
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(), options.connectTimeoutMs);
  try {
    const address = displayUrl(url).replace(/^ws/, "http");
    const response = await options.fetch(address, { redirect: "manual", signal: abort.signal });
    return handshakeError(url, response.status, await response.text());
  } catch (error) {
    return unreachable(url, error, options.connectTimeoutMs);
  } finally {
    clearTimeout(timer);
  }
}

/**
 * The URL of the ingest, with its path. Throws `TypeError` unless it is a websocket URL.
 * @param {string} url
 */
export function withPath(url) {
  const parts = URL.canParse(url) ? new URL(url) : null;
  if (parts === null || !["ws:", "wss:"].includes(parts.protocol) || parts.port === "0") {
    throw new TypeError("the ingest URL must begin with ws:// or wss:// and a host");
  }
  if (!parts.pathname.replaceAll("/", "")) parts.pathname = PATH;
  return parts.href;
}

/**
 * The error for an answer that is not an upgrade to a websocket.
 * @param {string} url
 * @param {number} status
 * @param {string} body
 * @returns {Error}
 */
export function handshakeError(url, status, body) {
  const problem = problemOf(body);
  const code = String(problem.reason ?? "");
  const detail = String(problem.detail ?? "this is not voicemem's answer");
  if (status >= 500 || isTransient(code, status)) return passingError(displayUrl(url), code, status, detail);
  const isOurs = String(problem.type ?? "").startsWith("urn:voicemem:") && status !== UPGRADE_REQUIRED;
  const reason = `${HTTP_STATUS} ${status}: ${detail}`;
  return isOurs ? new RequestRefused(code, detail, status) : new Blocked(reason, reason);
}

/**
 * @param {string} body
 * @returns {Record<string, unknown>}
 */
function problemOf(body) {
  try {
    return Object(JSON.parse(body));
  } catch {
    return {};
  }
}
