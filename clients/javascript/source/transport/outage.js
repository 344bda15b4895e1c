/** What keeps a client from its server, in its warnings: each reason when it is new, and the end of it. */
import { asSentence, checkOf, displayUrl, withCheck, TIMED_OUT } from "./failures.js";
import { seconds } from "../errors.js";

/** The newest failure of each way to the server, by its address. */
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
