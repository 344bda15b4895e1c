/** Failures to reach a server, in words: the address, the reason, and what to check; and an outage in warnings. */
import { Unreachable, seconds } from "../errors.js";

export const REFUSED = "connection refused";
export const UNKNOWN_HOST = "unknown host";
export const NOT_VERIFIED = "CERTIFICATE_VERIFY_FAILED";
export const NO_TLS = "TLS failed";
export const TIMED_OUT = "timed out";
export const CLOSED = "the connection was closed before the answer was complete";
export const NOT_HTTP = "the answer is not valid HTTP";
export const HTTP_STATUS = "HTTP status";
/** All that a socket of JavaScript says. */
export const REFUSED_BY_SOCKET = "the connection could not be made";
/** What to look at, by the beginning of the reason. */
export const CHECKS = {
  [REFUSED]: "Check that `voicemem serve` runs there, and that this is the address that it shows.",
  [UNKNOWN_HOST]: "Check the name of the host, and that this machine can resolve it.",
  [NOT_VERIFIED]: "Check the name in the certificate, and that this machine trusts its issuer (NODE_EXTRA_CA_CERTS).",
  [NO_TLS]: "Check that both sides use TLS: wss:// and https:// with it, ws:// and http:// without.",
  [TIMED_OUT]: "Check that the service there is not stuck, and that no firewall is in the way.",
  [CLOSED]: "Check that the service runs behind this address, and whether it needs wss:// or https://.",
  [NOT_HTTP]: "Check that this is the address of voicemem, and whether it needs wss:// or https://.",
  [HTTP_STATUS]: "Check the address, and that the proxy in front of voicemem passes websockets on.",
  [REFUSED_BY_SOCKET]: "Check that `voicemem serve` runs there, and that it lets this page in.",
};
const NOT_VERIFIED_CODES = /^(CERT_|ERR_TLS_CERT|DEPTH_ZERO|SELF_SIGNED|UNABLE_TO_|HOSTNAME_MISMATCH)/;

/** Whether a failed request says why; browsers keep it to themselves. */
export function isNode() {
  return /** @type {any} */ (globalThis).process?.versions?.node !== undefined;
}

/**
 * The error for an address that gave no answer.
 * @param {string} url
 * @param {unknown} error
 * @param {number} timeoutMs how long an attempt may take
 * @param {string} [method]
 */
export function unreachable(url, error, timeoutMs, method = "") {
  const reason = reasonOf(error, timeoutMs);
  return new Unreachable(`${method} ${displayUrl(url)}: ${reason}.`.trimStart(), reason);
}

/**
 * Why an attempt failed; never empty.
 * @param {any} error
 * @param {number} timeoutMs
 * @returns {string}
 */
export function reasonOf(error, timeoutMs) {
  for (const cause of [error?.cause?.errors?.[0], error?.cause, error?.errors?.[0], error]) {
    const reason = knownReason(cause, timeoutMs);
    if (reason !== null) return reason;
  }
  return error?.cause?.message || error?.message || String(error) || "unknown";
}

/**
 * The reason if an error says it.
 * @param {any} error
 * @param {number} timeoutMs
 * @returns {string | null}
 */
function knownReason(error, timeoutMs) {
  const code = String(error?.code ?? "");
  if (error?.name === "AbortError" || error?.name === "TimeoutError" || code.includes("TIMEOUT")) {
    return `${TIMED_OUT} after ${seconds(timeoutMs)}`;
  }
  if (code === "ETIMEDOUT") return `${TIMED_OUT} after ${seconds(timeoutMs)}`;
  if (NOT_VERIFIED_CODES.test(code)) return `${NOT_VERIFIED}: ${error.message}`;
  if (code.startsWith("ERR_SSL_") || code === "EPROTO") return `${NO_TLS}: ${code}`;
  if (code === "ENOTFOUND") return UNKNOWN_HOST;
  if (code === "EAI_AGAIN" || error?.syscall === "getaddrinfo") return `${UNKNOWN_HOST}: ${code}`;
  if (code === "ECONNREFUSED") return REFUSED;
  if (["ECONNRESET", "EPIPE", "ECONNABORTED", "UND_ERR_SOCKET"].includes(code)) return CLOSED;
  if (code.startsWith("HPE_")) return NOT_HTTP;
  return null;
}

/**
 * What to check about a reason; empty if there is nothing to say.
 * @param {string} reason
 */
export function checkOf(reason) {
  return Object.entries(CHECKS).find(([beginning]) => reason.startsWith(beginning))?.[1] ?? "";
}

/** @param {string} reason */
export function asSentence(reason) {
  return `${reason.replace(/\.+$/, "")}.`;
}

/**
 * A reason as a sentence, with what to check about it.
 * @param {string} reason
 */
export function withCheck(reason) {
  return `${asSentence(reason)} ${checkOf(reason)}`.trimEnd();
}

/**
 * An address as errors and logs show it: without user, password and query, which may be secret.
 * @param {string} url
 */
export function displayUrl(url) {
  const parts = new URL(url);
  return `${parts.protocol}//${parts.host}${parts.pathname === "/" ? "" : parts.pathname}`;
}

/** The newest failure of each transport to the server, by its address. */
export class Outage {
  /**
   * @param {string} url that of the websocket
   * @param {(sentence: string) => void} warn
   */
  constructor(url, warn) {
    this.url = displayUrl(url);
    this.warn = warn;
    /** @type {Map<string, string>} */
    this.reasons = new Map();
    /** @type {number | null} When the websocket failed first, Unix ms; null while it works. */
    this.began = null;
    this.usesHttp = false;
  }

  /**
   * Warn of why an attempt failed, unless the last one at this address failed for the same reason.
   * @param {string} address
   * @param {string} reason
   */
  noteFailure(address, reason) {
    this.began ??= Date.now();
    if (this.reasons.get(address) === reason) return;
    this.reasons.set(address, reason);
    this.warn(`${address}: ${withCheck(reason)}`);
  }

  /**
   * Say that events go over HTTP, once until the websocket is back.
   * @param {string} address
   */
  noteHttp(address) {
    this.reasons.delete(address);
    if (this.usesHttp) return;
    this.usesHttp = true;
    this.warn(`${address}: events go over HTTP until the websocket is back`);
  }

  /** Say that the websocket works again, if it did not. */
  noteWebsocket() {
    if (this.began === null) return;
    this.warn(`${this.url}: the websocket is back after ${((Date.now() - this.began) / 1000).toFixed(1)} s`);
    this.began = null;
    this.usesHttp = false;
    this.reasons.clear();
  }
  /**
   * Why nothing has come of an attempt that took so long, and what to check.
   * @param {number} timeoutMs
   */
  explain(timeoutMs) {
    const failures = this.reasons.size ? this.reasons : new Map([[this.url, `${TIMED_OUT} after ${seconds(timeoutMs)}`]]);
    const reasons = [...failures].map(([address, reason]) => `${address}: ${asSentence(reason)}`);
    return [...reasons, ...new Set([...failures.values()].map(checkOf))].join(" ").trimEnd();
  }
}
