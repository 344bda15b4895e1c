/** The key of a client, which may change while it works. */

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

  /** @returns {Promise<string | undefined>} */
  async get() {
    return typeof this.key === "function" ? this.key() : this.key;
  }
}
