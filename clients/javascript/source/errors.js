/**
 * What can go wrong for a client. Each error has the code and the sentence that the server gave.
 *
 *     ClientError
 *     ├── BufferFull        the event was not taken, because too much is unacknowledged
 *     ├── EventRefused      one event was refused; it is not stored
 *     │   ├── SessionEnded  the session takes no new events
 *     │   └── SessionErased the session was erased
 *     ├── Superseded        another process has opened this producer; this one is locked out
 *     ├── RequestRefused    the server refused a request, an open, or the client as a whole
 *     ├── Unreachable       no answer came
 *     ├── TimedOut          what was waited for has not happened yet
 *     ├── Closed            the client was closed before the event was acknowledged
 *     └── Unacknowledged    close: some events were not acknowledged in time
 *
 * The sets below say what the client does about the codes and statuses of a server.
 */

// Try again later

/** Never a reason to give up, whatever the HTTP status or close code that comes with them. */
export const TRANSIENT_CODES = new Set([
  ...["flood", "rate_limited", "quota_exceeded", "timeout", "too_many_connections"],
  ...["draining", "store_unavailable", "internal"],
]);
/** HTTP statuses that may change soon, also when a proxy sends them without a code. */
export const TRANSIENT_STATUSES = new Set([408, 429, 500, 502, 503, 504]);
/** The server works and asks for patience, so attempts become rare. */
export const BUSY_CODES = new Set(["flood", "rate_limited", "quota_exceeded", "store_unavailable", "too_many_connections"]);
export const TOO_MANY_REQUESTS = 429;

// Open again

/** The server no longer knows what this connection has opened: only a new connection helps. */
export const LOST_STATE_CODES = new Set(["not_open", "session_required"]);

// Give up

/** This producer can send nothing more into its session. */
export const PRODUCER_FATAL_CODES = new Set(["superseded", "session_erased", "seq_required"]);
/** Websocket close codes after which the client must not connect again, unless the error is transient. */
export const CLIENT_FATAL_CLOSES = new Set([1003, 1007, 1008, 1009]);
/** HTTP statuses that mean the same, once a producer has been opened. */
export const CLIENT_FATAL_STATUSES = new Set([401, 403]);

/** Base of all errors of the client. `code` is one of the server's codes, or one of the client's own. */
export class ClientError extends Error {
  /**
   * @param {string} code
   * @param {string} detail
   */
  constructor(code, detail) {
    super(`${code}: ${detail}`);
    this.name = new.target.name;
    this.code = code;
    this.detail = detail;
  }
}

/** Too many events or bytes are unacknowledged, so this event was not taken; its seq is still free. */
export class BufferFull extends ClientError {
  /**
   * @param {number} events
   * @param {number} size in bytes
   */
  constructor(events, size) {
    super("buffer_full", `${events} events of ${size} bytes are not acknowledged yet.`);
  }
}

/** One event was refused, and none of it is stored. `seq` is null if the client did not take it. */
export class EventRefused extends ClientError {
  /**
   * @param {string} code
   * @param {string} detail
   * @param {number | null} [seq]
   */
  constructor(code, detail, seq = null) {
    super(code, detail);
    this.seq = seq;
  }
}

/** The session has ended; it takes no new events. */
export class SessionEnded extends EventRefused {}

/** The session was erased; its id cannot be used again. */
export class SessionErased extends EventRefused {}

/** Another process has opened this producer. Unacknowledged events may or may not be stored. */
export class Superseded extends ClientError {
  constructor() {
    super("superseded", "Another process has opened this producer.");
  }
}

/** The server answered a request with an error. `status` is the HTTP status, null over a websocket. */
export class RequestRefused extends ClientError {
  /**
   * @param {string} code
   * @param {string} detail
   * @param {number | null} [status]
   * @param {Record<string, any>} [problem] the whole problem document of an HTTP answer, or nothing
   */
  constructor(code, detail, status = null, problem = {}) {
    super(code, detail);
    this.status = status;
    this.problem = problem;
  }
}

/** No answer came: the connection failed, or it timed out. The sentence names the address and the reason. */
export class Unreachable extends ClientError {
  /**
   * @param {string} detail
   * @param {string} [reason] the same without the address
   */
  constructor(detail, reason = detail) {
    super("unreachable", detail);
    this.reason = reason;
  }
}

/** The server answered that it cannot serve this client for now; thrown only inside the client. */
export class Busy extends Unreachable {}

/** Something other than voicemem answered, such as a proxy that forbids websockets; only inside the client. */
export class Blocked extends Unreachable {}

/** voicemem answered a request to its websocket: something is in the way, or the attempt was cut; only inside the client. */
export class NotUpgraded extends Blocked {}

/** The time that a caller gave has passed. What became of the events is not known yet; they stay under way. */
export class TimedOut extends ClientError {
  /**
   * @param {string} subject
   * @param {number} timeoutMs
   */
  constructor(subject, timeoutMs) {
    super("timed_out", `${subject} not acknowledged within ${seconds(timeoutMs)}, and may still be.`);
  }
}

/** The client was closed. Events unacknowledged by then may or may not be stored. */
export class Closed extends ClientError {
  constructor() {
    super("closed", "The client is closed.");
  }
}

/** The client is closed, and some events were not acknowledged. `events` counts them by session id. */
export class Unacknowledged extends ClientError {
  /** @param {Record<string, number>} events */
  constructor(events) {
    const count = Object.values(events).reduce((sum, one) => sum + one, 0);
    super("unacknowledged", `${count} events were not acknowledged in time.`);
    this.events = events;
  }
}

/**
 * Whether a refused request may succeed later.
 * @param {string} code
 * @param {number | null} status null for an error that came without one
 */
export function isTransient(code, status) {
  return TRANSIENT_CODES.has(code) || (status !== null && TRANSIENT_STATUSES.has(status));
}

/**
 * The error for a refusal that may pass.
 * @param {string} address
 * @param {string} code
 * @param {number | null} status
 * @param {string} detail
 */
export function passingError(address, code, status, detail) {
  const reason = `HTTP status ${status}: ${detail}`;
  const kind = BUSY_CODES.has(code) || status === TOO_MANY_REQUESTS ? Busy : Unreachable;
  return new kind(`${address}: ${reason}`, reason);
}

/**
 * A time as sentences show it.
 * @param {number} ms
 */
export function seconds(ms) {
  return `${Number((ms / 1000).toPrecision(6))} s`;
}
