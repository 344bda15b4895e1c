// @ts-check
/** The tab of how the call is set up. Secrets are never in it: the service does not give them out. */
import { get } from "../base/api.js";
import { h, replace } from "../base/dom.js";
import { full } from "../base/times.js";
import { panel } from "../memory/remembered.js";

const LONG = 80; // characters from which a value has lines of its own

/** @param {HTMLElement} container @param {{session: any, id: string}} given */
export function show(container, { session, id }) {
  const place = h("div", { class: "settings" });
  container.append(place);
  let closed = false;
  draw(place, session);
  get(`/v1/sessions/${encodeURIComponent(id)}`).then((now) => closed || draw(place, now), () => null);
  return { close: () => (closed = true) };
}

/** @param {HTMLElement} place @param {any} session */
function draw(place, session) {
  const config = session.config ?? {};
  const groups = Object.entries(config).filter(([, value]) => isGroup(value));
  const plain = Object.entries(config).filter(([, value]) => !isGroup(value) && value !== null);
  const times = [["session_id", session.session_id], ["state", session.state], ["reason", session.reason], ["started_at", full(session.started_at)], ["ended_at", session.ended_at ? full(session.ended_at) : null], ["position", session.position]];
  const panels = [panel("This call", pairs(times.filter(([, value]) => value !== null && value !== undefined))), plain.length ? panel("Settings", pairs(plain)) : null, ...groups.map(([name, value]) => panel(name, pairs(flat(value))))];
  const raw = h("details", { class: "panel" }, h("summary", null, "As JSON"), h("pre", { tabindex: 0, "aria-label": "Configuration as JSON" }, JSON.stringify(config, null, 2)));
  replace(place, ...panels, raw);
}

/** @param {any} value */
const isGroup = (value) => value !== null && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length > 0;

/** The values of a group by their whole names. @param {any} group @param {string} [before] @returns {[string, any][]} */
function flat(group, before = "") {
  return Object.entries(group).flatMap(([name, value]) => {
    if (value === null) return [];
    return isGroup(value) && before.split(".").length < 4 ? flat(value, `${before}${name}.`) : [[`${before}${name}`, value]];
  });
}

/** @param {any[][]} rows */
function pairs(rows) {
  return h("dl", { class: "wide-pairs" }, ...rows.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", { dir: "auto" }, written(value)))));
}

/** @param {any} value */
function written(value) {
  if (Array.isArray(value) && value.every((one) => one?.role && typeof one.content === "string")) {
    return value.map((one) => h("p", { class: "prompt" }, h("span", { class: "note" }, one.role), one.content));
  }
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return text.length > LONG || text.includes("\n") ? h("pre", null, text) : text;
}
