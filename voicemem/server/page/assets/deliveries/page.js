// @ts-check
/** Deliveries: the endpoints and how they do, and what was sent, waits or has failed. */
import { get } from "../base/api.js";
import { h, replace } from "../base/dom.js";
import { link, setQuery } from "../base/routes.js";
import { addEndpoint } from "./adding.js";
import { button, endpointCard, nameOf } from "./endpoints.js";
import { deliveriesTable } from "./table.js";

const STATES = { "": "All", pending: "Waiting", delivered: "Delivered", failed: "Failed" };
const LOOK_MS = 5_000;
const ROWS = 50;

/** @param {HTMLElement} container @param {any} route @param {any} shell */
export function show(container, route, shell) {
  const page = { id: route.id, may: shell.may, endpoints: [], deliveries: [], next: null, older: 0, closed: false, table: /** @type {any} */ (null), add: () => {} };
  const parts = { ends: h("div", { class: "ends" }), rest: h("div"), title: h("h2"), more: h("div", { class: "more" }), message: h("p", { class: "soft", role: "status" }) };
  const changed = () => load(page, parts);
  page.table = deliveriesTable({ may: page.may, changed });
  page.add = () => addEndpoint(changed);
  const add = page.may ? h("span", { class: "acts" }, button("Add an endpoint…", page.add, "main")) : null;
  parts.rest.append(h("div", { class: "title" }, parts.title, stateChoice(page, changed)), parts.message, page.table.element, parts.more);
  container.append(h("div", { class: "title" }, h("h1", null, "Deliveries"), add), parts.ends, parts.rest);
  document.title = "Deliveries · voicemem";
  changed();
  const timer = setInterval(() => !document.hidden && !page.older && load(page, parts), LOOK_MS);
  return {
    close() {
      page.closed = true;
      clearInterval(timer);
    },
  };
}

/** @param {any} page @param {() => void} changed */
function stateChoice(page, changed) {
  const current = new URLSearchParams(location.search).get("state") ?? "";
  const choices = Object.entries(STATES).map(([value, words]) => {
    const input = h("input", { type: "radio", name: "state", value, checked: value === current });
    input.addEventListener("change", () => {
      setQuery({ state: value });
      page.older = 0;
      changed();
    });
    return h("label", null, input, words);
  });
  return h("fieldset", { class: "seg acts" }, h("legend", { class: "sr" }, "State"), ...choices);
}

/** Read endpoints and deliveries, and show them. @param {any} page @param {any} parts @param {string} [before] */
async function load(page, parts, before) {
  const state = new URLSearchParams(location.search).get("state");
  const path = page.id && page.may ? `/v1/webhooks/${encodeURIComponent(page.id)}/deliveries` : "/v1/deliveries";
  const [ends, sent] = await Promise.all([
    page.may ? get("/v1/webhooks").catch(() => null) : null,
    get(path, { state, limit: ROWS, before }).catch((problem) => problem),
  ]);
  if (page.closed || (document.querySelector("dialog[open]") && page.deliveries.length)) return;
  if (ends) page.endpoints = ends.webhooks;
  if (sent instanceof Error) return replace(parts.message, h("span", { class: "bad" }, sent.message));
  const chosen = page.endpoints.find((/** @type {any} */ one) => one.id === page.id);
  const shown = sent.deliveries.filter((/** @type {any} */ one) => !page.id || !one.webhook || one.webhook.id === page.id).map((/** @type {any} */ one) => (one.webhook ? one : { ...one, webhook: chosen ?? { id: page.id, description: page.id, enabled: true } }));
  page.deliveries = before ? [...page.deliveries, ...shown] : shown;
  page.next = sent.next_before;
  draw(page, parts, chosen);
}

const hasState = () => Boolean(new URLSearchParams(location.search).get("state"));

/** @param {() => void} add */
function noEndpoints(add) {
  return h("section", { class: "panel empty" }, h("h2", null, "No endpoints yet"), h("p", null, "An endpoint is a URL of yours that receives each call when it ends, as a signed webhook."), h("p", null, button("Add an endpoint…", add, "main")));
}

/** @param {any} page @param {any} parts @param {any} chosen */
function draw(page, parts, chosen) {
  const changed = () => load(page, parts);
  const focused = /** @type {HTMLElement | null} */ (document.activeElement)?.getAttribute("aria-controls");
  const isBare = page.may && !page.endpoints.length && !page.deliveries.length;
  parts.rest.hidden = isBare;
  if (isBare) return replace(parts.ends, noEndpoints(page.add));
  replace(parts.ends, ...page.endpoints.map((/** @type {any} */ one) => endpointCard(one, one.id === page.id, page.may, changed)));
  replace(parts.title, page.id ? [nameOf(chosen ?? { id: page.id, description: page.id }), " ", link("/deliveries", "show all")] : "All endpoints");
  page.table.draw(page.deliveries);
  const empty = page.deliveries.length ? null : page.next ? "None of the newest deliveries are in this state." : hasState() ? "No deliveries are in this state." : "Nothing has been sent yet. A call’s webhooks are sent when it ends.";
  replace(parts.message, empty);
  const older = page.next ? button("Older deliveries", () => ((page.older += 1), load(page, parts, page.next))) : null;
  replace(parts.more, older);
  if (focused) /** @type {HTMLElement | null} */ (document.querySelector(`[aria-controls="${CSS.escape(focused)}"]`))?.focus();
}
