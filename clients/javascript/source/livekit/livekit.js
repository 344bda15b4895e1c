/**
 * One line for an agent of LiveKit's JavaScript: what its `AgentSession` reports in events is remembered.
 *
 *     const memory = attach(session, client, { sessionId: ctx.job.id }); // before session.start
 *
 * `@livekit/agents` is not imported here. See docs/livekit.md.
 */

import { TimedOut } from "../errors.js";
import { checkNames } from "../options.js";
import { BackgroundSession } from "../tee/background.js";
import { within } from "../waiting.js";
import { EVENTS, frameOf } from "./frames.js";

/** @typedef {import("../client.js").Client} Client */
/** @typedef {{[name: string]: any}} JsonObject */

const DIALECT = "livekit-agents";

/** An `AgentSession`, as far as it is used: what it emits. */
/** @typedef {{on: (type: any, listener: (event: any) => void) => unknown}} AgentSession */

/**
 * Remember what an `AgentSession` says and hears; returns the memory at once. Throws `TypeError` for what has no events,
 * and for an id or a name that cannot be. Afterwards nothing throws into LiveKit, or holds it up.
 *
 * @param {AgentSession} agentSession
 * @param {Client} client
 * @param {{sessionId?: string, userId?: string, producer?: string, config?: JsonObject}} [options] the id of the call (a
 *   random one without it), its user, the name under which frames are sent, and the configuration of a new session
 * @returns {AgentMemory}
 */
export function attach(agentSession, client, options = {}) {
  checkNames(options, ["sessionId", "userId", "producer", "config"]);
  const { sessionId, userId, producer = DIALECT } = options;
  const config = userId === undefined ? options.config : { ...options.config, user_id: userId };
  if (typeof agentSession?.on !== "function") {
    throw new TypeError("attach needs an AgentSession of @livekit/agents");
  }
  const memory = new AgentMemory(client, new BackgroundSession(client, { sessionId, producer, config, dialect: DIALECT }));
  for (const type of EVENTS) {
    agentSession.on(type, (event) => memory.on(event));
  }
  return memory;
}

/** The memory of an agent's session. Nothing here throws, or waits without a bound. */
export class AgentMemory {
  /**
   * @param {Client} client
   * @param {BackgroundSession} background
   */
  constructor(client, background) {
    this.client = client;
    this.background = background;
    this.ended = false;
    /** @type {Map<string, number>} The newest time of each type of events, by which repeats are known. */
    this.times = new Map();
  }

  /** The id of the session. */
  get sessionId() {
    return this.background.sessionId;
  }

  /** The client's session; null where there can be none. */
  get session() {
    return this.background.session;
  }

  /** How many events could not be kept. */
  get dropped() {
    return this.background.dropped;
  }

  /**
   * Send an event of voicemem.v1 next to what LiveKit reports: `metric`, how far a player of your own is …
   *
   * @param {JsonObject} event
   */
  send(event) {
    this.background.send({ event: { ts: Date.now(), ...event }, ends: false });
  }

  /**
   * The body of the next LLM request, with all that was said so far; null if it does not come in `contextTimeoutMs`.
   *
   * @param {JsonObject} [params] what `session.context` takes
   * @returns {Promise<JsonObject | null>}
   */
  context(params = {}) {
    return this.background.context(params);
  }

  /**
   * End the call if LiveKit has not, and wait until all of it is on disk, at most `timeoutMs` (the client's
   * `closeTimeoutMs` without it).
   *
   * @param {{reason?: string, timeoutMs?: number}} [how]
   */
  async close({ reason = "closed", timeoutMs = this.client.options.closeTimeoutMs } = {}) {
    if (!this.ended) {
      this.ended = true;
      this.background.send({ event: { type: "session.end", reason, ts: Date.now() }, ends: true });
    }
    const late = () => new TimedOut("A call was", timeoutMs);
    await within(this.background.close(timeoutMs), timeoutMs, late).catch(() => {});
  }

  /** @param {JsonObject} event of LiveKit */
  on(event) {
    try {
      const frame = frameOf(event);
      if (frame === null || this.ended) {
        return;
      }
      const ts = Number.isFinite(event.createdAt) ? Math.round(event.createdAt) : Date.now();
      this.ended = event.type === "close";
      this.background.send({ frame: this.unlikeOthers(frame), from: undefined, ts, ends: this.ended });
    } catch (error) {
      this.background.warnOnce("An event of LiveKit is not as this version expects it.", error);
    }
  }

  /**
   * A frame whose time is its own: the service takes those of one type and time for repeats, and these are in ms.
   *
   * @param {JsonObject} frame
   * @returns {JsonObject}
   */
  unlikeOthers(frame) {
    const newest = this.times.get(frame.type) ?? 0;
    const own = frame.created_at > newest ? frame.created_at : newest + 1 / 1024;
    this.times.set(frame.type, own);
    return { ...frame, created_at: own };
  }
}
