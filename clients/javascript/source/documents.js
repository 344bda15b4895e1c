/** Working memory over REST: the document of a session. */
import { queryParams } from "./transport/rest.js";

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
   * @param {import("./transport/rest.js").RestClient} rest
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
