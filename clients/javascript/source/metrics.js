/** A client's counts: events that `record` could not take, and its metrics in the text format of Prometheus. */

/** @typedef {import("./errors.js").ClientError} ClientError */

/** Counts the dropped events of a client by the code of their error. */
export class DroppedEvents {
  /** @param {Pick<import("./options.js").Options, "onDropped" | "warn">} options */
  constructor(options) {
    this.options = options;
    /** @type {Map<string, number>} */
    this.counts = new Map();
  }

  /**
   * Count an event. Never throws, since this runs where audio is processed.
   * @param {string} sessionId
   * @param {string} producer
   * @param {ClientError} error
   */
  report(sessionId, producer, error) {
    const count = (this.counts.get(error.code) ?? 0) + 1;
    this.counts.set(error.code, count);
    try {
      if (isWorthSaying(count)) {
        const which = `session ${sessionId}, producer ${producer}: an event was not taken`;
        this.options.warn(`${which}, number ${count} with this code: ${error.message}`);
      }
      this.options.onDropped?.(sessionId, producer, error);
    } catch (mistake) {
      // a defect of the program's own must not stop its audio
      console.error("onDropped has failed:", mistake);
    }
  }
}

/**
 * True for the 1st, 2nd, 4th, 8th … of a kind: an outage must not fill the log.
 * @param {number} count
 */
export function isWorthSaying(count) {
  return Number.isInteger(Math.log2(count));
}

const PREFIX = "voicemem_client";
const TRANSPORTS = ["http", "websocket"];

/**
 * The metrics of a client, as a page of `/metrics` has them.
 * @param {Record<string, number>} dropped counts by code
 * @param {Iterable<import("./producer.js").Producer>} producers
 * @param {string | null} transport
 */
export function exposition(dropped, producers, transport) {
  const held = [...producers].map((producer) => producer.buffer);
  const events = held.reduce((sum, buffer) => sum + buffer.length, 0);
  const bytes = held.reduce((sum, buffer) => sum + buffer.size, 0);
  const byCode = Object.entries(dropped).map(([code, count]) => [`{code="${code}"}`, count]);
  const connected = TRANSPORTS.map((name) => [`{transport="${name}"}`, Number(name === transport)]);
  return [
    family("dropped_events_total", "counter", byCode),
    family("unacknowledged_events", "gauge", [["", events]]),
    family("unacknowledged_bytes", "gauge", [["", bytes]]),
    family("connected", "gauge", connected),
  ].join("");
}

/**
 * One metric.
 * @param {string} name
 * @param {string} kind
 * @param {(string | number)[][]} samples its values by labels
 */
function family(name, kind, samples) {
  const lines = samples.map(([labels, value]) => `${PREFIX}_${name}${labels} ${value}\n`).sort();
  return [`# TYPE ${PREFIX}_${name} ${kind}\n`, ...lines].join("");
}
