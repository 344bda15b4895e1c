// @ts-check
/** One delivery as rows of a table: what was sent where, each attempt, the next try, and the payload. */
import { get, post } from "../base/api.js";
import { ask } from "../base/dialog.js";
import { h, replace } from "../base/dom.js";
import { link } from "../base/routes.js";
import { ago, full, milliseconds, moment } from "../base/times.js";
import { button, nameOf } from "./endpoints.js";

export const EVENTS = { 101: "started", 102: "left", 103: "history", 111: "latencies", 112: "turns", 1001: "complete turns", 1002: "memories" };
const KINDS = { delivered: "ok", pending: "wait", failed: "bad" };
export const COLUMNS = ["When", "Event", "Call", "To", "Attempts", "State", "Actions"];

/**
 * @param {any} delivery @param {boolean} isOpen
 * @param {{may: boolean, toggle: (id: string) => void, changed: () => void, withCall?: boolean}} page
 */
export function deliveryRows(delivery, isOpen, { may, toggle, changed, withCall = true }) {
  const id = `attempts-${delivery.id}`;
  const open = h("button", { class: "btn plain tries-of", type: "button", "aria-expanded": String(isOpen), "aria-controls": id, on: { click: () => toggle(delivery.id) } }, dots(delivery));
  const canResend = may && delivery.webhook.id && delivery.webhook.enabled;
  const row = h(
    "tr",
    null,
    h("td", { class: "num" }, h("time", { title: full(delivery.created_at) }, moment(delivery.created_at))),
    h("td", null, EVENTS[/** @type {101} */ (delivery.event_type)] ?? "", " ", h("span", { class: "soft num" }, delivery.event_type)),
    withCall ? h("td", { class: "call" }, link(`/calls/${encodeURIComponent(delivery.session_id)}`, delivery.session_id)) : null,
    h("td", null, delivery.webhook.id ? nameOf(delivery.webhook) : "the call’s own endpoint"),
    h("td", null, open),
    h("td", null, state(delivery)),
    h("td", { class: "r" }, canResend ? button("Resend…", () => resend(delivery, changed)) : null),
  );
  return isOpen ? [row, h("tr", { id, class: "more-of" }, h("td", { colspan: withCall ? 7 : 6 }, details(delivery)))] : [row];
}

/** @param {any} delivery */
function dots({ attempts, state: now }) {
  const made = attempts.map((/** @type {any} */ one) => h("i", { class: succeeded(one) ? null : "f" }));
  const words = `${attempts.length} ${attempts.length === 1 ? "attempt" : "attempts"}`;
  return [h("span", { class: "dots", "aria-hidden": "true" }, ...made, now === "pending" ? h("i", { class: "n" }) : null), " ", h("span", { class: "num" }, words)];
}

/** @param {any} attempt */
const succeeded = ({ status }) => status >= 200 && status < 300;

/** @param {any} delivery */
function state(delivery) {
  const kind = KINDS[/** @type {"failed"} */ (delivery.state)];
  return h("span", { class: `state ${kind}` }, h("span", { class: `dot ${kind}` }), stateWords(delivery));
}

/** @param {any} delivery */
function stateWords({ state: now, waiting_for, next_attempt_at, attempts }) {
  const last = attempts.at(-1);
  if (waiting_for) return "waiting: the call is quarantined";
  if (now === "failed" && last) return `failed: ${last.status ?? last.error}`;
  if (now !== "pending") return now;
  if (!last) return "on its way";
  return `${last.status ?? last.error}; ${next_attempt_at > Date.now() ? `next try ${ago(next_attempt_at)}` : "trying again"}`;
}

/** @param {any} delivery */
function details(delivery) {
  const tries = delivery.attempts.map((/** @type {any} */ one) =>
    h("li", null, h("span", { class: "num" }, full(one.started_at)), h("span", { class: succeeded(one) ? "ok num" : "bad num" }, one.status ?? one.error), h("span", { class: "num" }, milliseconds(one.duration_ms)), h("span", { class: "soft said" }, one.excerpt || (one.status ? one.error : ""))),
  );
  if (delivery.state === "pending" && delivery.next_attempt_at) {
    const next = `attempt ${delivery.attempts.length + 1}`;
    tries.push(h("li", null, h("span", { class: "num" }, full(delivery.next_attempt_at)), h("span", { class: "wait" }, "next"), h("span"), h("span", { class: "soft" }, next)));
  }
  const shown = h("div", { class: "payload" });
  const show = button("Show the payload", async () => {
    show.disabled = true;
    const answer = await get(`/v1/deliveries/${delivery.id}`, { payload: true }).catch((problem) => problem);
    if (answer instanceof Error) replace(shown, h("p", { class: "bad", role: "alert" }, answer.message));
    else replace(shown, answer.payload ? h("pre", { tabindex: 0, "aria-label": "Payload" }, JSON.stringify(answer.payload, null, 2)) : h("p", { class: "soft" }, "The payload is made at the first attempt."));
    show.disabled = false;
  });
  const list = tries.length ? h("ul", { class: "tries" }, ...tries) : h("p", { class: "soft" }, "No attempt has been made.");
  return [list, h("p", { class: "soft mono" }, `Webhook event ${delivery.notice_id}`), h("p", null, show), shown];
}

/** @param {any} delivery @param {() => void} changed */
async function resend(delivery, changed) {
  const path = `/v1/webhooks/${encodeURIComponent(delivery.webhook.id)}/deliveries/${delivery.id}/resend`;
  const words = h("p", null, `Event ${delivery.event_type} of call ${delivery.session_id} is sent to ${nameOf(delivery.webhook)} once more, now.`);
  if (await ask({ title: "Send this event again?", words, action: "Resend", run: () => post(path) })) changed();
}
