// @ts-check
/** One call in the list: who, when, its picture, its figures, its last words, and what became of its webhooks. */
import { h } from "../base/dom.js";
import { link } from "../base/routes.js";
import { ago, full, length, milliseconds, moment } from "../base/times.js";
import { smallTimeline } from "./small_timeline.js";

export const SLOW_MS = 1500;
const NOTHING = "–";
const LABELS = 1; // the rest is counted
/** @type {Record<string, [string, string]>} */
const WEBHOOKS = { delivered: ["ok", "delivered"], pending: ["wait", "waiting"], failed: ["bad", "failed"] };

/** @param {any} row a slim row of GET /v1/sessions */
export function callRow(row) {
  const figures = row.figures ?? {};
  const slow = figures.slowest_ms > SLOW_MS;
  return h(
    "tr",
    { dataset: { id: row.session_id } },
    h("td", { class: "name" }, nameOf(row)),
    h("td", { class: "opt" }, h("div", { class: "user", title: row.user_id }, row.user_id ?? NOTHING)),
    h("td", { class: "num when" }, h("time", { datetime: new Date(row.started_at).toISOString(), title: full(row.started_at) }, moment(row.started_at)), stateOf(row)),
    h("td", { class: "r num opt", dataset: { name: "length" } }, length(lengthOf(row))),
    h("td", { class: "wide picture" }, smallTimeline(figures.strip, spoken(figures))),
    h("td", { class: "r num opt" }, count(figures.turns)),
    h("td", { class: "r num opt" }, count(figures.interruptions)),
    h("td", { class: "r num opt less" }, figures.unheard ? h("span", { title: `${figures.unheard.toLocaleString("en")} characters were generated but not heard` }, figures.unheard.toLocaleString("en")) : NOTHING),
    h("td", { class: "r num opt" }, milliseconds(figures.reply_after_ms), slow ? h("div", { class: "sub bad" }, `slowest ${milliseconds(figures.slowest_ms)}`) : null),
    h("td", { class: "wide" }, lastWords(figures.last)),
    h("td", { class: "opt" }, webhookOf(row.webhooks)),
  );
}

/** @param {any} row */
function nameOf(row) {
  const labels = Object.entries(row.labels ?? {});
  const more = labels.length - LABELS;
  const tags = labels.slice(0, LABELS).map(([key, value]) => h("span", { class: "tag" }, `${key}:${value}`));
  const rest = more > 0 ? h("span", { class: "tag", title: labels.slice(LABELS).map((one) => one.join(":")).join(", ") }, `+${more}`) : null;
  const call = link(`/calls/${encodeURIComponent(row.session_id)}`, row.session_id);
  call.className = "call";
  const sub = row.name || labels.length ? h("div", { class: "sub" }, row.name ? h("span", null, row.name) : null, tags, rest) : null;
  return [call, sub];
}

/** @param {any} row */
function stateOf(row) {
  const live = row.state === "running";
  const words = live ? h("span", { class: "state live" }, h("span", { class: "dot" }), "live") : h("span", { class: "soft" }, (row.reason ?? "ended").replaceAll("_", " "));
  const outcome = row.figures?.outcome;
  return h("div", { class: "sub" }, words, outcome ? h("span", { class: "tag", title: `Outcome: ${outcome}` }, outcome) : null);
}

/** How long it has been, up to now for one that runs. @param {any} row */
export function lengthOf(row) {
  const to = row.ended_at ?? (row.state === "running" ? Date.now() : row.active_at);
  const whole = row.figures?.strip?.length_ms;
  return row.state !== "running" && Number.isFinite(whole) && whole > 0 ? whole : to - row.started_at;
}

/** @param {any} number */
const count = (number) => (number ? number.toLocaleString("en") : NOTHING);

/** @param {any} figures */
function spoken({ turns, interruptions }) {
  if (!turns) return "nothing was said";
  return `${turns} turn${turns === 1 ? "" : "s"}, ${interruptions || "none"} cut`;
}

/** @param {any} last */
function lastWords(last) {
  if (!last) return null;
  const words = last.open ? h("em", null, last.text) : last.text;
  return h("div", { class: "last", dir: "auto" }, h("span", { class: "sr" }, last.role === "user" ? "caller: " : "agent: "), words);
}

/** @param {any} webhooks */
function webhookOf(webhooks) {
  const [look, words] = WEBHOOKS[webhooks?.state] ?? [];
  if (!look) return null;
  const next = webhooks.state === "pending" && webhooks.next_attempt_at > Date.now() ? `next try ${ago(webhooks.next_attempt_at)}` : words;
  return h("span", { class: "state" }, h("span", { class: `dot ${look}` }), h("span", { class: look === "ok" ? "soft" : look }, next));
}
