// @ts-check
/** What was refused, which keys there are, and which nodes serve the store. */
import { remove } from "../base/api.js";
import { ask } from "../base/dialog.js";
import { h } from "../base/dom.js";
import { ago, day } from "../base/times.js";

/** @param {string} caption @param {string[]} heads @param {any[]} rows */
function table(caption, heads, rows) {
  const head = heads.map((words) => h("th", { scope: "col", class: words === "Events" ? "r" : null }, words || h("span", { class: "sr" }, "Actions")));
  return h("section", null, h("h2", null, caption), h("div", { class: "wide-table", tabindex: 0, role: "region", "aria-label": caption }, h("table", null, h("caption", { class: "sr" }, caption), h("thead", null, h("tr", null, ...head)), h("tbody", null, ...rows))));
}

/** @param {Record<string, number>} refused */
export function refusedTable(refused) {
  const codes = Object.entries(refused).sort(([, a], [, b]) => b - a);
  if (!codes.length) return h("section", null, h("h2", null, "Refused events, since the start"), h("p", { class: "soft" }, "None."));
  const rows = codes.map(([code, count]) => h("tr", null, h("td", null, h("code", null, code)), h("td", { class: "r num" }, count.toLocaleString("en"))));
  return table("Refused events, since the start", ["Code", "Events"], rows);
}

/** @param {any[]} nodes */
export function nodesTable(nodes) {
  const rows = nodes.map((one) =>
    h("tr", null, h("td", null, h("code", null, one.node), one.this ? h("span", { class: "tag" }, "serves this page") : null), h("td", null, one.address || "library"), h("td", null, one.version), h("td", { class: "num" }, ago(one.started_at)), h("td", null, state(one.alive))),
  );
  return table("Nodes of this store", ["Node", "Address", "Version", "Started", "State"], rows);
}

/** @param {boolean} isAlive */
function state(isAlive) {
  const kind = isAlive ? "ok" : "bad";
  return h("span", { class: `state ${kind}` }, h("span", { class: `dot ${kind}` }), isAlive ? "alive" : "lost");
}

/** @param {any[]} keys @param {string | null} own @param {() => void} changed @param {string} command makes the first key */
export function keysTable(keys, own, changed, command) {
  if (!keys.length) return h("section", null, h("h2", null, "Keys of this project"), h("p", { class: "soft" }, "None, so anyone on this machine can do everything. Make the first one with ", h("code", { class: "command" }, command)));
  const rows = keys.map((key) =>
    h("tr", null, h("td", null, key.name || h("span", { class: "soft" }, "no name"), h("div", { class: "soft mono" }, key.id)), h("td", null, key.scopes.join(", ")), h("td", { class: "num" }, day(key.created_at)), h("td", { class: "r" }, key.revoked_at ? h("span", { class: "soft" }, `revoked ${day(key.revoked_at)}`) : revoking(key, own, changed))),
  );
  return table("Keys of this project", ["Name", "Scopes", "Created", ""], rows);
}

/** @param {any} key @param {string | null} own @param {() => void} changed */
function revoking(key, own, changed) {
  const revoke = async () => {
    const mine = key.id === own ? " You are signed in with this key: this page closes too." : "";
    const words = h("p", null, `Requests with it are refused at once, and its open connections are closed. This cannot be undone.${mine}`);
    if (await ask({ title: `Revoke ${key.name || key.id}?`, words, action: "Revoke", danger: true, run: () => remove(`/v1/keys/${key.id}`) })) changed();
  };
  return h("button", { class: "btn danger", type: "button", on: { click: revoke } }, "Revoke…");
}
