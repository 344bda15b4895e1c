/** A session for code that nothing may hold up: what it cannot do is warned of, once for each reason. */

import { TimedOut } from "../errors.js";

/** @typedef {import("../client.js").Client} Client */
/** @typedef {import("../dialects/dialect.js").JsonObject} JsonObject */
/** @typedef {import("../session.js").Session} Session */

/**
 * An event, or a frame with who sent it and when (Unix ms); and whether it ends the session.
 *
 * @typedef {{event: JsonObject, ends: boolean}} SentEvent
 * @typedef {{frame: JsonObject | string, from: "vendor" | "app" | undefined, ts: number, ends: boolean}} SentFrame
 * @typedef {SentEvent | SentFrame} Sent
 */
/** @typedef {{session: Session, times: number}} Shared a session, and how often it was asked for */

/** After a read that failed, the memory is not asked for so long. */
const QUIET_MS = 5_000;
/** Sessions that an earlier connection of the same call has opened, by client and by their id and producer. */
const SHARED = /** @type {WeakMap<Client, Map<string, Shared>>} */ (new WeakMap());

/** One producer's session. `send` and `context` never throw. */
export class BackgroundSession {
  /**
   * @param {Client} client
   * @param {{sessionId: string | undefined, producer: string, config: JsonObject | undefined, dialect: string}} given
   *   without an id the client makes one
   */
  constructor(client, given) {
    this.client = client;
    /** Events that came where there can be no session. */
    this.lost = 0;
    this.quietUntil = 0;
    /** @type {Set<string>} */
    this.warned = new Set();
    /** @type {Shared | null} */
    this.shared = null;
    try {
      this.shared = sharedSession(client, given);
      this.shared.session.ready().catch((/** @type {unknown} */ error) => this.warnOnce("This call is not remembered.", error));
    } catch (error) {
      this.warnOnce("This call is not remembered.", error);
    }
    this.times = this.shared?.times ?? 0;
    this.sessionId = this.shared?.session.sessionId ?? given.sessionId ?? null;
    this.droppedBefore = this.shared?.session.dropped ?? 0;
  }

  get session() {
    return this.shared?.session ?? null;
  }

  /** Whether no other of the same producer has come since. */
  get isAlone() {
    return this.shared === null || this.shared.times === this.times;
  }

  get dropped() {
    return this.lost + (this.session?.dropped ?? 0) - this.droppedBefore;
  }

  /** @param {Sent} sent is taken at once */
  send(sent) {
    if (this.session === null) {
      this.lost += 1;
    } else if ("event" in sent) {
      this.session.record(sent.event, { ends: sent.ends });
    } else {
      const { frame, from, ts, ends } = sent;
      this.session.recordFrame(frame, { from, ts, ends });
    }
  }

  /**
   * The body of the next LLM request, with everything that was sent before, also by other connections of the call that
   * share the client; null if it does not come in time.
   *
   * It takes at most the client's `contextTimeoutMs` in all, half of that for what is still on its way there.
   *
   * @param {JsonObject} params
   * @returns {Promise<JsonObject | null>}
   */
  async context(params) {
    if (this.session === null || performance.now() < this.quietUntil) {
      return null;
    }
    const deadline = performance.now() + this.client.options.contextTimeoutMs;
    const leftMs = () => Math.max(1, Math.ceil(deadline - performance.now()));
    try {
      const timeoutMs = Math.ceil(leftMs() / 2);
      const others = [...(SHARED.get(this.client)?.values() ?? [])]
        .map(({ session }) => session)
        .filter((session) => session !== this.session && session.sessionId === this.sessionId);
      await Promise.all([
        this.session.flush({ timeoutMs }),
        ...others.map((session) => session.flush({ timeoutMs }).catch(unlessLate)),
      ]);
      return await this.session.context({ ...params, timeoutMs: leftMs() });
    } catch (error) {
      this.quietUntil = performance.now() + QUIET_MS;
      this.warnOnce("The agent continues without its memory.", error);
      return null;
    }
  }

  /** @param {number} timeoutMs how long to wait at most until everything that was sent is on disk */
  async close(timeoutMs) {
    try {
      await this.session?.flush({ timeoutMs });
    } catch (error) {
      this.warnOnce("A call was not stored completely.", error);
    }
  }

  /**
   * @param {string} consequence
   * @param {unknown} error
   */
  warnOnce(consequence, error) {
    const { code, name, message } = /** @type {any} */ (error);
    const reason = `${code ?? name}`;
    if (!this.warned.has(reason)) {
      this.warned.add(reason);
      warn(this.client, `${consequence} Session ${this.session?.sessionId ?? this.sessionId}: ${message}`);
    }
  }
}

/**
 * Tell the operator. A defect of the program's own `warn` must not end the call.
 *
 * @param {Client} client
 * @param {string} sentence
 */
export function warn(client, sentence) {
  try {
    client.options.warn(sentence);
  } catch (mistake) {
    console.error("warn has failed:", mistake);
  }
}

/**
 * What another connection of the call cannot deliver at all is not waited for; what is late is not left out.
 *
 * @param {unknown} error
 */
function unlessLate(error) {
  if (error instanceof TimedOut) {
    throw error;
  }
}

/**
 * A session of the client, which an earlier connection of the call may have opened. Throws as `client.session` does.
 *
 * @param {Client} client
 * @param {{sessionId: string | undefined, producer: string, config: JsonObject | undefined, dialect: string}} given
 * @returns {Shared}
 */
function sharedSession(client, { sessionId, producer, config, dialect }) {
  const ofClient = SHARED.get(client) ?? new Map();
  SHARED.set(client, ofClient);
  for (const [key, { session }] of ofClient) {
    if (!client.isOpen(session.sessionId, session.producer)) {
      ofClient.delete(key);
    }
  }
  const found = sessionId === undefined ? undefined : ofClient.get(`${sessionId} ${producer}`);
  if (found !== undefined && found.session.dialect === dialect) {
    found.times += 1;
    return found;
  }
  const shared = { session: client.session(sessionId, { producer, config, dialect }), times: 1 };
  ofClient.set(`${shared.session.sessionId} ${producer}`, shared);
  return shared;
}
