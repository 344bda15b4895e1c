// @ts-check
/** One delivery of a webhook: where to, how it went each time, when it is tried next, and what was sent. */
import { get, post } from "../base/api.js";
import { h, replace } from "../base/dom.js";
import { ago, full, milliseconds, seconds } from "../base/times.js";

/** @type {Record<string, [string, string]>} */
const STATES = { delivered: ["ok", "delivered"], pending: ["wait", "pending"], failed: ["bad", "failed"] };

/** @param {any} delivery @param {{may: boolean, resent: () => void}} given */
export function deliveryItem(delivery, { may, resent }) {
  const [look, words] = STATES[delivery.state] ?? ["", delivery.state];
  const { webhook } = delivery;
  const where = webhook?.description || webhook?.origin || "endpoint";
  const next = delivery.state === "pending" && delivery.next_attempt_at ? `next try ${ago(delivery.next_attempt_at)}, at ${seconds(delivery.next_attempt_at)}` : null;
  const waits = delivery.waiting_for ? "waits until the call can be read again" : null;
  const status = h("p", { class: "bad", role: "status" });
  const head = h(
    "header",
    null,
    h("h3", null, where, webhook?.description ? h("span", { class: "soft" }, ` ${webhook.origin}`) : null),
    h("span", { class: "state" }, h("span", { class: `dot ${look}` }), h("span", { class: look === "ok" ? "soft" : look }, words)),
  );
  const note = [`notice ${delivery.event_type}`, `made ${full(delivery.created_at)}`, webhook && webhook.id === null ? "the call's own receiver" : null, waits ?? next];
  const acts = h("div", { class: "acts" }, may && webhook?.id ? resendButton(delivery, status, resent) : null);
  return h("li", { class: "panel", dataset: { delivery: delivery.id } }, head, h("p", { class: "note" }, note.filter(Boolean).join(" · ")), attempts(delivery.attempts ?? []), payload(delivery), acts, status);
}

/** @param {any[]} tried */
function attempts(tried) {
  if (!tried.length) return h("p", { class: "soft" }, "Not tried yet.");
  return h(
    "ol",
    { class: "tries", "aria-label": "Attempts" },
    ...tried.map(({ started_at: at, status, duration_ms: took, error, excerpt }) =>
      h("li", null, h("span", { class: "num", title: full(at) }, seconds(at)), h("span", { class: status >= 200 && status < 300 ? "num" : "num bad" }, status ?? "no answer"), h("span", { class: "num soft" }, milliseconds(took)), h("span", { class: "soft excerpt" }, error ?? excerpt)),
    ),
  );
}

/** @param {any} delivery */
function payload(delivery) {
  const place = h("pre", { tabindex: 0, "aria-label": "What was sent" });
  const details = h("details", null, h("summary", null, "What was sent"), place);
  details.addEventListener("toggle", async () => {
    if (!details.hasAttribute("open") || place.textContent) return;
    place.textContent = "…";
    const answer = await get(`/v1/deliveries/${delivery.id}`, { payload: true }).catch((problem) => ({ problem }));
    const sent = answer.payload;
    replace(place, answer.problem?.detail ?? (sent ? (typeof sent === "string" ? sent : JSON.stringify(sent, null, 2)) : "Nothing was sent yet."));
  });
  return details;
}

/** @param {any} delivery @param {HTMLElement} status @param {() => void} resent */
function resendButton(delivery, status, resent) {
  const button = h("button", { class: "btn", type: "button" }, "Send again");
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      await post(`/v1/webhooks/${delivery.webhook.id}/deliveries/${delivery.id}/resend`);
      resent();
    } catch (problem) {
      status.textContent = /** @type {any} */ (problem).detail;
      button.disabled = false;
    }
  });
  return button;
}

