/** The key of a client, which may change while it works. */
import { Unreachable, seconds } from "./errors.js";
import { within } from "./waiting.js";

const PRINTABLE_ASCII = /^[\x20-\x7e]*$/;

/**
 * A key, or a session token; or what gets the present one: it is asked before each connection and each request.
 * @typedef {string | (() => string | undefined | Promise<string | undefined>)} Key
 */

export class CurrentKey {
  /**
   * Throws `TypeError` for a key that no header can carry.
   * @param {Key | undefined} key
   */
  constructor(key) {
    /** @type {Key | undefined} */
    this.key = undefined;
    this.set(key);
  }

  /** @param {Key | undefined} key */
  set(key) {
    if (typeof key === "string" && !PRINTABLE_ASCII.test(key)) throw new TypeError("a key must be printable ASCII");
    this.key = key;
  }

  /** Whether another one can be had once this one has expired. */
  get renews() {
    return typeof this.key === "function";
  }

  /**
   * The present key. Throws `Unreachable` if it cannot be had in time: it may be had later.
   * @param {number} timeoutMs
   * @returns {Promise<string | undefined>}
   */
  async get(timeoutMs) {
    if (typeof this.key !== "function") return this.key;
    try {
      const late = () => new Error(`timed out after ${seconds(timeoutMs)}`);
      const key = await within(Promise.resolve(this.key()), timeoutMs, late);
      if (key === undefined || (typeof key === "string" && PRINTABLE_ASCII.test(key))) return key;
      throw new Error("what was given is no line of printable ASCII"); // such as the page of a backend in trouble
    } catch (error) {
      throw new Unreachable(`the key could not be had: ${error instanceof Error ? error.message : error}`);
    }
  }
}
