// @ts-check
/** The list of calls: the newest first, live and ended, kept up to date while one looks. */
import { get } from "../base/api.js";
import { clear, h, replace } from "../base/dom.js";
import { go, link } from "../base/routes.js";
import { length } from "../base/times.js";
import { counted } from "./counting.js";
import { filterBar, isFiltered, offerOutcome, parameters } from "./filters.js";
import { followCalls } from "./live.js";
import { callRow, lengthOf } from "./row.js";
import { searched } from "./search.js";

const ROWS = 50;
const MOST = 10_000; // more is not counted
const TICK_MS = 1000;
const COUNT_MS = 1000; // at least between two counts of calls that are not all shown
const LONGEST_MS = 10_000; // and at most, as no tail reports those
const COLUMNS = ["Call", "User", "Started", ["Length"], "Caller above, agent below", ["Turns"], ["Cut"], ["Not heard", "Characters generated but not heard"], ["Reply after", "How long the caller waited for a reply: the median of the call"], "Last words", "Webhook"];

/** @typedef {{rows: Map<string, any>, next: string | null, total: number | null}} Shown */

/** @param {HTMLElement} container @param {{query: URLSearchParams}} route */
export function show(container, route) {
  const body = h("tbody");
  const summary = h("span", { class: "soft num", role: "status" });
  const more = h("div", { class: "more" });
  const message = h("div", { class: "message" });
  const lost = h("span", { class: "state wait", role: "status" });
  const list = { query: route.query, rows: new Map(), next: null, total: null, live: null, counting: 0, asked: 0, closed: false };
  const heads = COLUMNS.map((column) => (Array.isArray(column) ? h("th", { scope: "col", class: column[0] === "Not heard" ? "r less" : "r", title: column[1] }, column[0]) : h("th", { scope: "col" }, column)));
  const table = h("table", { class: "calls", hidden: true }, h("caption", { class: "sr" }, "Calls, the newest first"), h("thead", null, h("tr", null, ...heads)), body);
  const parts = { body, summary, more, message, table, lost };
  const bar = filterBar(route.query, () => load(list, parts));
  Object.assign(parts, { bar });
  container.append(h("div", { class: "title" }, h("h1", null, "Calls"), summary, lost), bar, message, h("div", { class: "wide-table", tabindex: 0, role: "region", "aria-label": "Calls" }, table), more);
  document.title = "Calls · voicemem";
  const erased = history.state?.erased;
  if (erased) {
    bar.before(h("p", { class: "done", role: "status" }, `${erased} was erased.`));
    history.replaceState(null, "");
  }
  load(list, parts);
  const timer = setInterval(() => tick(list, body), TICK_MS);
  const counts = setInterval(() => document.hidden || countSoon(list, parts), LONGEST_MS);
  return {
    close() {
      list.closed = true;
      list.tail?.close();
      clearInterval(timer);
      clearInterval(counts);
      clearTimeout(list.counting);
    },
  };
}

/** Read the first page for the address, and follow it. @param {any} list @param {any} parts */
async function load(list, parts) {
  const mine = ++list.asked;
  clear(parts.message);
  list.query = new URLSearchParams(location.search);
  list.tail?.close();
  const words = list.query.get("q");
  if (words) return search(list, parts, words, mine);
  const asked = { ...parameters(list.query), limit: ROWS };
  const cursor = list.query.get("cursor");
  const answer = await get("/v1/sessions", { ...asked, cursor, count: !cursor }).catch((problem) => problem);
  if (mine !== list.asked || list.closed) return;
  if (!answer.sessions) return fail(parts, answer);
  list.rows = new Map(answer.sessions.map((/** @type {any} */ row) => [row.session_id, row]));
  list.next = answer.next_cursor;
  list.total = answer.total ?? null;
  list.live = null;
  draw(list, parts);
  if (cursor) return;
  if (list.next) countAgain(list, parts);
  list.tail = followCalls(asked, {
    changed: (row) => update(list, parts, row),
    again: () => load(list, parts),
    gone: (id) => remove(list, parts, id),
    lost: (isLost) => replace(parts.lost, isLost ? [h("span", { class: "dot wait" }), "Connection lost. Trying again…"] : null),
  });
}

/** Show what was said in place of the list. @param {any} list @param {any} parts @param {string} words @param {number} mine */
async function search(list, parts, words, mine) {
  const found = await searched(words, list.query).catch((problem) => problem);
  if (mine !== list.asked || list.closed) return;
  if (!(found instanceof Element)) return fail(parts, found);
  list.rows.clear();
  parts.table.hidden = true;
  replace(parts.summary);
  replace(parts.more);
  replace(parts.message, found);
}

/** @param {any} list @param {any} parts */
function draw(list, parts) {
  replace(parts.body, ...[...list.rows.values()].map(callRow));
  parts.table.hidden = list.rows.size === 0;
  replace(parts.message, list.rows.size ? null : empty(list));
  count(list, parts);
}

/** @param {any} list @param {any} parts */
function count(list, parts) {
  offerOutcome(parts.bar, list.rows.values());
  const isWhole = !list.next && !list.query.get("cursor");
  if (isWhole) list.total = list.rows.size;
  const live = isWhole ? [...list.rows.values()].filter((row) => row.state === "running").length : list.live;
  const known = list.total === null ? null : list.total > MOST ? `more than ${MOST.toLocaleString("en")}` : list.total.toLocaleString("en");
  const all = known === null ? null : `${known} ${isFiltered(list.query) ? "found" : list.total === 1 ? "call" : "calls"}`;
  const liveWords = live ? h("span", { class: "state live" }, h("span", { class: "dot" }), `${live} live`) : null;
  replace(parts.summary, liveWords, liveWords && all ? " " : null, all);
  const older = list.next ? link(pageAt(list.query, list.next), "Older calls") : null;
  const newest = list.query.get("cursor") ? link(pageAt(list.query), "Newest calls") : null;
  replace(parts.more, list.rows.size ? h("span", null, `${list.rows.size} shown`) : null, h("span", { class: "pages" }, newest, older));
}

/** Count what is not all shown, soon. @param {any} list @param {any} parts */
function countSoon(list, parts) {
  if (list.next && !list.counting) list.counting = window.setTimeout(() => countAgain(list, parts), COUNT_MS);
}

/** @param {any} list @param {any} parts */
async function countAgain(list, parts) {
  list.counting = 0;
  const mine = list.asked;
  const known = await counted(list.query).catch(() => null);
  if (!known || mine !== list.asked || list.closed) return;
  Object.assign(list, known);
  count(list, parts);
}

/** The address of another page of the same list. @param {URLSearchParams} query @param {string} [cursor] */
function pageAt(query, cursor) {
  const other = new URLSearchParams(query);
  if (cursor) other.set("cursor", cursor);
  else other.delete("cursor");
  return `/calls?${other}`;
}

/** @param {any} list */
function empty({ query, next }) {
  if (next) return h("div", { class: "panel empty" }, h("p", null, "None of the newest calls match these filters. Older ones have not been searched yet."));
  if (!isFiltered(query) && !query.get("cursor")) {
    return h("div", { class: "panel empty" }, h("h2", null, "No calls yet"), h("p", null, "A call appears here as soon as an agent sends it. To see one now, replay the recorded call that comes with the package:"), h("p", null, h("code", { class: "command" }, "voicemem replay --pace 1")));
  }
  const reset = h("button", { class: "btn", type: "button" }, "Show all calls");
  reset.addEventListener("click", () => go("/calls"));
  return h("div", { class: "panel empty" }, h("h2", null, "No calls match these filters"), h("p", null, reset));
}

/** @param {any} parts @param {any} problem */
function fail(parts, problem) {
  parts.table.hidden = true;
  replace(parts.summary);
  replace(parts.more);
  replace(parts.message, h("p", { class: problem.status ? "alert" : "alert unreachable", role: "alert" }, `Calls cannot be shown. ${problem.detail ?? problem.message}`));
}

/** Show a row that changed, or is new. @param {any} list @param {any} parts @param {any} row */
function update(list, parts, row) {
  const known = list.rows.get(row.session_id);
  if (known && JSON.stringify(known) === JSON.stringify(row)) return;
  if (known?.state !== row.state) countSoon(list, parts);
  const made = callRow(row);
  const shown = rowOf(parts.body, row.session_id);
  list.rows.set(row.session_id, row);
  if (shown) {
    const focused = shown.contains(document.activeElement);
    shown.replaceWith(made);
    if (focused) made.querySelector("a")?.focus();
  } else {
    const rows = [...list.rows.values()].sort((one, other) => other.started_at - one.started_at);
    list.rows = new Map(rows.map((one) => [one.session_id, one]));
    const after = rows[rows.indexOf(row) + 1];
    parts.body.insertBefore(made, after ? rowOf(parts.body, after.session_id) : null);
    parts.table.hidden = false;
    replace(parts.message);
  }
  count(list, parts);
}

/** @param {any} list @param {any} parts @param {string} id */
function remove(list, parts, id) {
  if (!list.rows.delete(id)) return;
  rowOf(parts.body, id)?.remove();
  countSoon(list, parts);
  if (!list.rows.size) draw(list, parts);
  else count(list, parts);
}

/** @param {HTMLElement} body @param {string} id */
const rowOf = (body, id) => [...body.children].find((row) => /** @type {HTMLElement} */ (row).dataset.id === id) ?? null;

/** Let the lengths of running calls grow. @param {any} list @param {HTMLElement} body */
function tick(list, body) {
  for (const row of list.rows.values()) {
    const cell = row.state === "running" && rowOf(body, row.session_id)?.querySelector('[data-name="length"]');
    if (cell) cell.textContent = length(lengthOf(row));
  }
}
