// @ts-check
/** The endpoints of a project: how each does, and what can be done to it. */
import { patch, post } from "../base/api.js";
import { ask, tell } from "../base/dialog.js";
import { h } from "../base/dom.js";
import { link } from "../base/routes.js";
import { ago } from "../base/times.js";

const DAY_MS = 86_400_000;
const REASONS = { gone: "it answered 410 Gone", failing: "it failed for days", request: "by request" };

/** How people call an endpoint. @param {any} endpoint */
export function nameOf(endpoint) {
  if (endpoint.id === "operator") return "Operator’s endpoint";
  return endpoint.description || host(endpoint.url ?? endpoint.origin);
}

/** @param {string} address */
function host(address) {
  try {
    return new URL(address).host;
  } catch {
    return address;
  }
}

/** @param {any} endpoint @param {boolean} isChosen @param {boolean} may @param {() => void} changed */
export function endpointCard(endpoint, isChosen, may, changed) {
  const id = encodeURIComponent(endpoint.id);
  const title = h("h2", null, link(`/deliveries/${id}`, nameOf(endpoint)));
  const types = `events ${endpoint.event_types.join(", ")}`;
  return h(
    "section",
    { class: isChosen ? "panel chosen" : "panel" },
    h("header", null, title, health(endpoint)),
    h("p", { class: "mono where" }, endpoint.url),
    h("p", { class: "soft num" }, `${types} · ${lastDay(endpoint)}`),
    may ? h("p", { class: "acts" }, ...actions(endpoint, changed)) : null,
  );
}

/** @param {any} endpoint */
function health(endpoint) {
  const [kind, words] = healthOf(endpoint);
  return h("span", { class: `state ${kind}` }, h("span", { class: `dot ${kind}` }), words);
}

/** @param {any} endpoint @returns {[string, string]} */
function healthOf({ enabled, disabled_reason, failing_since, delivered_24h }) {
  if (!enabled) return [disabled_reason === "request" ? "" : "bad", `disabled: ${REASONS[/** @type {"gone"} */ (disabled_reason)] ?? "by request"}`];
  if (failing_since) return ["bad", `failing for ${lasting(failing_since)}`];
  return ["ok", delivered_24h ? "healthy" : "nothing sent yet today"];
}

/** How long something has lasted: "12 minutes". @param {number} since */
export const lasting = (since) => ago(since).replace(" ago", "").replace("just now", "a moment");

/** @param {any} endpoint */
function lastDay({ delivered_24h, failed_24h, pending }) {
  const counts = [`${delivered_24h.toLocaleString("en")} delivered`, failed_24h ? `${failed_24h.toLocaleString("en")} failed` : null];
  return `${counts.filter(Boolean).join(", ")} in 24 h · ${pending.toLocaleString("en")} ${pending === 1 ? "waits" : "wait"}`;
}

/** @param {any} endpoint @param {() => void} changed */
function actions(endpoint, changed) {
  const path = `/v1/webhooks/${encodeURIComponent(endpoint.id)}`;
  const acts = [button("Send a test", () => test(endpoint, path))];
  if (endpoint.enabled && endpoint.failed_24h) acts.push(button("Recover failed…", () => recover(endpoint, path, changed)));
  if (endpoint.id === "operator") return acts;
  acts.push(button("Rotate secret…", () => rotate(endpoint, path, changed)));
  acts.push(endpoint.enabled ? button("Disable…", () => disable(endpoint, path, changed), "danger") : button("Enable…", () => enable(endpoint, path, changed)));
  return acts;
}

/** @param {string} words @param {() => any} act @param {string} [kind] */
export function button(words, act, kind = "") {
  return h("button", { class: `btn ${kind}`.trim(), type: "button", on: { click: act } }, words);
}

/** @param {any} endpoint @param {string} path */
async function test(endpoint, path) {
  let answer = /** @type {any} */ (null);
  const words = h("p", null, `One test event of each type (${endpoint.event_types.join(", ")}) is sent now. It belongs to no call.`);
  const isSent = await ask({ title: `Send a test to ${nameOf(endpoint)}?`, words, action: "Send a test", run: async () => (answer = await post(`${path}/test`)) });
  if (!isSent) return;
  const rows = answer.results.map((/** @type {any} */ one) =>
    h("li", null, h("span", { class: "num" }, one.event_type), h("span", { class: one.passed ? "ok" : "bad" }, one.status ?? one.error), h("span", { class: "num" }, `${one.duration_ms} ms`), h("span", { class: "soft said" }, one.excerpt)),
  );
  tell(answer.passed ? "Every test was accepted" : "Not every test was accepted", h("ul", { class: "tries" }, ...rows));
}

/** @param {any} endpoint @param {string} path @param {() => void} changed */
async function recover(endpoint, path, changed) {
  const words = h("p", null, `Everything that failed in the last 24 hours (${endpoint.failed_24h}) is sent again, now.`);
  if (await ask({ title: `Send failed deliveries to ${nameOf(endpoint)} again?`, words, action: "Recover failed", run: () => post(`${path}/recover`, { since: Date.now() - DAY_MS }) })) changed();
}

/** @param {any} endpoint @param {string} path @param {() => void} changed */
async function rotate(endpoint, path, changed) {
  let answer = /** @type {any} */ (null);
  const words = h("p", null, "You get a new secret, which is shown once. For 24 hours the old one signs as well.");
  const isDone = await ask({ title: `Rotate the secret of ${nameOf(endpoint)}?`, words, action: "Rotate secret", run: async () => (answer = await post(`${path}/rotate-secret`)) });
  if (!isDone) return;
  tell("New secret", h("p", null, "Copy it now: it is not shown again."), h("p", null, h("code", { class: "command", tabindex: 0 }, answer.secret)));
  answer = null;
  changed();
}

/** @param {any} endpoint @param {string} path @param {() => void} changed */
async function disable(endpoint, path, changed) {
  const words = h("p", null, `Nothing more is sent to it. ${endpoint.pending} waiting ${endpoint.pending === 1 ? "delivery counts" : "deliveries count"} as failed.`);
  if (await ask({ title: `Disable ${nameOf(endpoint)}?`, words, action: "Disable", danger: true, run: () => patch(path, { enabled: false }) })) changed();
}

/** @param {any} endpoint @param {string} path @param {() => void} changed */
async function enable(endpoint, path, changed) {
  const words = h("p", null, "It receives events from now on. Failed deliveries can be sent again afterwards.");
  if (await ask({ title: `Enable ${nameOf(endpoint)}?`, words, action: "Enable", run: () => patch(path, { enabled: true }) })) changed();
}
