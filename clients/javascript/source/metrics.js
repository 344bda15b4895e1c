/** A client's metrics, in the text format of Prometheus. */

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
