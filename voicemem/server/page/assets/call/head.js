// @ts-check
/** The head of a call: its name and state, what can be done, and its figures. */
import { h, replace } from "../base/dom.js";
import { link } from "../base/routes.js";
import { full, length } from "../base/times.js";
import { drawActions } from "./actions.js";
import { SLOW_MS } from "./marks.js";
import { afterOf, stateOf } from "./words.js";

/** @typedef {import("./live.js").Call} Call */

const LABELS = 8; // the others are one click away

/** @param {HTMLElement} container @param {Call} call @param {any} shell */
export function head(container, call, shell) {
  const state = h("span", { class: "state" });
  const tags = h("span", { class: "tags" });
  const acts = h("div", { class: "acts" });
  const facts = h("dl", { class: "facts" });
  const notice = h("p", { class: "alert", role: "status", hidden: true });
  const name = call.session.config?.name;
  container.append(
    h("p", { class: "soft crumb" }, link("/calls", "Calls")),
    h("div", { class: "title" }, h("h1", { class: "id" }, call.id), name ? h("span", { class: "soft" }, name) : null, state, tags, acts),
    facts,
    notice,
  );
  const labels = Object.entries(call.session.config?.labels ?? {});
  const tagOf = (/** @type {string[]} */ [key, value]) => h("span", { class: "tag", title: `${key}:${value}` }, `${key}:${value}`);
  const more = h("button", { class: "btn plain more-tags", type: "button", on: { click: () => replace(tags, labels.map(tagOf)) } }, `${labels.length - LABELS} more`);
  replace(tags, labels.slice(0, LABELS).map(tagOf), labels.length > LABELS ? more : null);
  return {
    /** @param {any} figures */
    draw(figures) {
      const live = call.session.state === "running";
      state.className = live ? "state live" : "state soft";
      replace(state, live ? h("span", { class: "dot" }) : null, stateOf(call.session));
      drawActions(acts, call, shell);
      replace(facts, ...factsOf(call, figures));
      notice.hidden = call.connection !== "lost";
      notice.textContent = call.connection === "lost" ? "Connection lost. Trying again… What you see may be out of date." : "";
    },
  };
}

/** @param {Call} call @param {any} figures */
function factsOf(call, figures) {
  const { config = {}, started_at: started } = call.session;
  const user = config.user_id;
  const model = config.llm?.model ?? config.llm?.params?.model;
  const slowest = figures.slowest && h("small", { class: figures.slowest.reply_after_ms > SLOW_MS ? "slow" : "" }, `slowest ${afterOf(figures.slowest)}`);
  const alarms = figures.falseAlarms ? `${figures.falseAlarms} false ${figures.falseAlarms > 1 ? "alarms" : "alarm"}` : "";
  const unanswered = figures.tools - figures.answered;
  return [
    user ? fact("user", link(`/calls?user=${encodeURIComponent(user)}`, user)) : null,
    call.outcome === null ? null : fact("outcome", h("bdi", null, call.outcome)),
    fact("started", full(started)),
    fact("length", length(figures.length)),
    fact("turns", figures.turns.toLocaleString("en")),
    fact("cut replies", figures.interruptions.toLocaleString("en"), alarms),
    figures.unheard ? fact("not heard", `${figures.unheard.toLocaleString("en")} characters`) : null,
    figures.usual ? fact("reply after", afterOf(figures.usual), slowest) : null,
    figures.tools ? fact("tools", String(figures.tools), unanswered ? `${unanswered} unanswered` : "all answered") : null,
    model ? fact("model", String(model)) : null,
  ];
}

/** @param {string} name @param {any} value @param {any} [more] */
function fact(name, value, more) {
  const small = typeof more === "string" ? h("small", null, more) : more;
  return h("div", null, h("dt", null, name), h("dd", null, value, more ? [" ", small] : null));
}
