// @ts-check
/** The figures of the service, each with its line of the last minutes. */
import { h } from "../base/dom.js";
import { spark } from "./spark.js";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** @param {number} value */
export const count = (value) => Math.round(value).toLocaleString("en");
/** @param {number} value */
export const rate = (value) => (value >= 100 || value === 0 ? count(value) : value.toFixed(1));
/** @param {number | null} value */
export const ms = (value) => (value === null ? "–" : value < 10 ? `${value.toFixed(1)} ms` : value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(2)} s`);

/** @param {number} value */
export function bytes(value) {
  const power = value < 1 ? 0 : Math.min(Math.floor(Math.log2(value) / 10), UNITS.length - 1);
  const shown = value / 1024 ** power;
  return `${shown >= 100 || power === 0 ? Math.round(shown) : shown.toFixed(shown >= 10 ? 1 : 2)} ${UNITS[power]}`;
}

/** Each tile: its words, the number that is drawn, what is shown, and what is said beside it. */
const TILES = [
  ["live calls", (/** @type {any} */ all) => all.sessions.running, count, (/** @type {any} */ all) => `${count(all.service.connected)} connected`],
  ["events", (/** @type {any} */ all) => all.service.rates["10s"].events, rate, (/** @type {any} */ all) => `a second · ${rate(all.service.rates["1m"].events)} over a minute`],
  ["ack, p99", (/** @type {any} */ all) => all.service.ack_ms.p99, ms, (/** @type {any} */ all) => `p50 ${ms(all.service.ack_ms.p50)}`],
  ["commit, p99", (/** @type {any} */ all) => all.service.commit_ms.p99, ms, (/** @type {any} */ all) => `p50 ${ms(all.service.commit_ms.p50)}`],
  ["webhooks waiting", (/** @type {any} */ all) => all.service.outbox.pending, count, (/** @type {any} */ all) => `${count(all.service.outbox.due)} due now`],
  ["store", (/** @type {any} */ all) => all.service.store.bytes, bytes, (/** @type {any} */ all) => `log ${bytes(all.service.store.log_bytes)}`],
  ["calls in memory", (/** @type {any} */ all) => all.service.memories.in_use, count, (/** @type {any} */ all) => bytes(all.service.memories.bytes)],
  ["LLM calls", (/** @type {any} */ all) => 60 * all.service.rates["1m"].llm_calls, rate, (/** @type {any} */ all) => `a minute, ${rate(60 * all.service.rates["1m"].llm_failed)} failed`],
];

/** @param {any} report @param {any[]} past reports of the last minutes, this one included */
export function tiles(report, past) {
  return TILES.map(([words, value, written, beside]) => {
    const line = past.map((one) => (one ? /** @type {any} */ (value)(one) : null));
    const shown = /** @type {any} */ (written)(/** @type {any} */ (value)(report));
    return h("div", { class: "tile" }, h("dt", null, words), h("dd", null, shown, " ", h("small", null, /** @type {any} */ (beside)(report))), spark(line));
  });
}
