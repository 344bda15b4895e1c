/** Memories that last beyond a call, over REST. */
import { inPath, queryParams, sessionPath } from "./transport/rest.js";

/** @typedef {Record<string, any>} Memory a memory as REST shows it */
/**
 * What a memory has besides its text; the server's defaults hold for what is absent.
 * @typedef {object} MemoryFields
 * @property {string} [kind]
 * @property {string} [id]
 * @property {string | null} [user_id]
 * @property {string | null} [namespace]
 * @property {string | null} [session_id]
 * @property {string[]} [topics]
 * @property {string[]} [entities]
 * @property {string | null} [event_at]
 * @property {number} [said_at]
 * @property {number | null} [expires_at]
 * @property {number} [confidence]
 * @property {boolean} [pinned]
 * @property {string[]} [supersedes]
 * @property {Record<string, any> | null} [metadata]
 * @property {string} [source]
 */
/**
 * Which memories a list has.
 * @typedef {object} ListParams
 * @property {string} [kind]
 * @property {string} [topic]
 * @property {string} [entity]
 * @property {string} [namespace]
 * @property {boolean} [pinned]
 * @property {boolean} [superseded]
 * @property {number} [as_of]
 * @property {number} [limit]
 * @property {string} [cursor]
 */
/**
 * Which memories to forget.
 * @typedef {object} ForgetParams
 * @property {string} [query]
 * @property {string[]} [kinds]
 * @property {string[]} [topics]
 * @property {number} [before]
 * @property {string} [namespace]
 * @property {number} [max_age_days]
 * @property {number} [max_inactive_days]
 * @property {number} [budget]
 * @property {boolean} [everything]
 * @property {boolean} [linked]
 * @property {boolean} [dry_run]
 */

/**
 * The memories of the project that the key opens.
 *
 * Each request takes at most `readTimeoutMs`. A change is sent once: after `Unreachable` it is not known whether it was
 * stored; all of them are safe to send again. All throw `RequestRefused`, `Unreachable`, `Closed`.
 */
export class Memories {
  /**
   * @param {import("./transport/rest.js").RestClient} rest
   * @param {number} timeoutMs
   */
  constructor(rest, timeoutMs) {
    /** @private */
    this._rest = rest;
    /** @private */
    this._timeoutMs = timeoutMs;
  }

  /**
   * Keep a memory; returns it as it is stored. What its owner has in the same words already is not kept twice.
   * @param {string} text
   * @param {MemoryFields} [fields]
   * @returns {Promise<Memory>}
   */
  async add(text, fields = {}) {
    return (await this._send("POST", "/v1/memories", { text, ...fields })).memories[0];
  }

  /**
   * A memory; with `evidence`, also the messages that it comes from, as they were heard.
   * @param {string} memoryId
   * @param {{evidence?: boolean}} [how]
   * @returns {Promise<Memory>}
   */
  async read(memoryId, { evidence } = {}) {
    return this._rest.get(memoryPath(memoryId), queryParams({ evidence }), this._timeoutMs);
  }

  /**
   * Change the fields that are given; null takes a value away. Returns the memory.
   * @param {string} memoryId
   * @param {Record<string, any>} fields
   * @returns {Promise<Memory>}
   */
  async change(memoryId, fields) {
    return this._send("PATCH", memoryPath(memoryId), fields);
  }

  /**
   * Remove a memory, and its text with it.
   * @param {string} memoryId
   */
  async remove(memoryId) {
    await this._send("DELETE", memoryPath(memoryId));
  }

  /**
   * A page of the memories of a user, the newest first.
   * @param {string} userId
   * @param {ListParams} [params]
   * @returns {Promise<{memories: Memory[], next_cursor: string | null}>}
   */
  async ofUser(userId, params = {}) {
    return this._rest.get(userPath(userId), queryParams(params), this._timeoutMs);
  }

  /**
   * The same of a session.
   * @param {string} sessionId
   * @param {ListParams} [params]
   * @returns {Promise<{memories: Memory[], next_cursor: string | null}>}
   */
  async ofSession(sessionId, params = {}) {
    return this._rest.get(sessionPath(sessionId, "/memories"), queryParams(params), this._timeoutMs);
  }

  /**
   * Forget memories of a user for good; returns `ids`. With `dry_run` it only says which.
   * @param {string} userId
   * @param {ForgetParams} params
   * @returns {Promise<Record<string, any>>}
   */
  async forget(userId, params) {
    return this._send("POST", `${userPath(userId)}/forget`, params);
  }

  /**
   * Make two ids one person's: what is read of either is then of both.
   * @param {string} userId
   * @param {string} sameAs
   */
  async link(userId, sameAs) {
    await this._send("PUT", linkPath(userId), { user_id: sameAs });
  }

  /**
   * Undo that, from either of the two.
   * @param {string} userId
   */
  async unlink(userId) {
    await this._send("DELETE", linkPath(userId));
  }

  /**
   * @private
   * @param {string} method
   * @param {string} path
   * @param {Record<string, any>} [json]
   * @returns {Promise<any>}
   */
  async _send(method, path, json) {
    return this._rest.request(method, path, { json, timeoutMs: this._timeoutMs });
  }
}

/** @param {string} memoryId */
function memoryPath(memoryId) {
  return `/v1/memories/${inPath(memoryId)}`;
}

/** @param {string} userId */
function linkPath(userId) {
  return `/v1/users/${inPath(userId)}/same-as`;
}

/** @param {string} userId */
function userPath(userId) {
  return `/v1/users/${inPath(userId)}/memories`;
}
