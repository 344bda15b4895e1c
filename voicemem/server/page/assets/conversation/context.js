// @ts-check
/** The panel of what the next LLM call gets: under which policy, how many tokens, what is left out, and as JSON. */
import { get } from "../base/api.js";
import { h, replace } from "../base/dom.js";
import { setQuery } from "../base/routes.js";
import { toolsOf } from "../call/marks.js";
import { folded } from "./fold.js";
import { showJson } from "./json_dialog.js";
import { gauge, pairs, textOf } from "./usage.js";

const POLICIES = ["full", "recent", "window", "summary", "priority"];
const STYLES = { openai: "OpenAI", anthropic: "Anthropic", gemini: "Gemini" };
const REFRESH_MS = 1000; // at least between two requests while a call grows
const LONG = 260; // characters of a message from which it is folded here
const KEYS = { sys: "system", sum: "in the summary", in: "unchanged", out: "left out", gone: "forgotten" };

/**
 * @param {HTMLElement} container
 * @param {import("../call/live.js").Call} call
 * @param {(usage: any) => void} onUsage called with each answer
 */
export function contextPanel(container, call, onUsage) {
  const own = call.session.config?.memory?.policy;
  const select = policySelect(own);
  const moment = momentSelect();
  const tools = toolsToggle();
  const body = h("div", { class: "context-body" });
  const choose = h("div", { class: "choose" }, moment.label, tools.label, select.label);
  const head = h("header", null, h("h2", { id: "next" }, "What the next LLM call gets"), choose);
  const panel = h("section", { class: "panel", "aria-labelledby": "next" }, head, body);
  container.append(panel);
  const state = { timer: 0, asked: 0, last: 0, closed: false };
  const parameters = () => ({ ...select.parameters(), ...moment.parameters(), ...tools.parameters(), peek: true });
  const read = async () => {
    state.timer = 0;
    state.last = Date.now();
    const asked = ++state.asked;
    const isCurrent = () => !state.closed && asked === state.asked;
    try {
      const context = await get(pathOf(call), { ...parameters(), style: "openai", usage: true });
      if (!isCurrent()) return;
      replace(body, ...written(context, call, parameters));
      panel.dataset.shown = select.parameters().policy ?? "";
      onUsage({ ...context, at_turn: moment.parameters().at_turn });
    } catch (problem) {
      if (isCurrent()) replace(body, h("p", { class: "bad", role: "alert" }, detailOf(problem)));
    }
  };
  select.label.addEventListener("change", read);
  moment.label.addEventListener("change", read);
  tools.label.addEventListener("change", read);
  return {
    refresh() {
      moment.offer([...call.turns.keys()]);
      tools.label.hidden = ![...call.turns.values()].some((turn) => toolsOf(turn).length);
      if (!state.timer) state.timer = window.setTimeout(read, Math.max(0, state.last + REFRESH_MS - Date.now()));
    },
    close() {
      state.closed = true;
      clearTimeout(state.timer);
    },
  };
}

/** @param {any} problem */
const detailOf = (problem) => problem?.detail ?? String(problem?.message ?? problem);

/** @param {import("../call/live.js").Call} call */
const pathOf = (call) => `/v1/sessions/${encodeURIComponent(call.id)}/context`;

/** The choice of a policy; it stands in the URL, so that a link keeps it. @param {string | undefined} own */
function policySelect(own) {
  const chosen = new URLSearchParams(location.search).get("policy") ?? "";
  const names = chosen && !POLICIES.includes(chosen) ? [...POLICIES, chosen] : POLICIES;
  const options = names.map((name) => h("option", { value: name }, name));
  const select = h("select", null, h("option", { value: "" }, `${own ?? "recent"} (this call’s)`), ...options);
  select.value = chosen;
  select.addEventListener("change", () => setQuery({ policy: select.value }));
  const parameters = () => (select.value ? { policy: select.value } : {});
  return { label: h("label", null, h("span", { class: "sr" }, "Policy"), select), parameters };
}

/** The choice of a moment: now, or before the reply of a turn. */
function momentSelect() {
  const select = h("select", null, h("option", { value: "" }, "now"));
  const label = h("label", null, h("span", { class: "sr" }, "As of"), select);
  return {
    label,
    parameters: () => (select.value ? { at_turn: Number(select.value) } : {}),
    offer(/** @type {number[]} */ turns) {
      const known = new Set([...select.options].map((option) => option.value));
      for (const turn of turns) if (!known.has(String(turn))) select.append(h("option", { value: turn }, `in turn ${turn}`));
    },
  };
}

/** Whether the request has the tool calls too; it stands in the URL. */
function toolsToggle() {
  const box = h("input", { type: "checkbox", name: "tools", checked: new URLSearchParams(location.search).get("tools") !== "off" });
  box.addEventListener("change", () => setQuery({ tools: box.checked ? null : "off" }));
  const label = h("label", { class: "toggle", hidden: true }, box, "tools");
  return { label, parameters: () => (box.checked && !label.hidden ? { tools: true } : {}) };
}

/** The panel's body for an answer. @param {any} context @param {import("../call/live.js").Call} call @param {() => any} parameters */
function written(context, call, parameters) {
  const buttons = Object.entries(STYLES).map(([style, name]) =>
    h("button", { class: "btn plain", type: "button", on: { click: () => json(call, style, name, parameters()) } }, name),
  );
  const keys = Object.entries(KEYS).map(([kind, words]) => h("span", null, h("i", { class: `k-${kind}` }), words));
  return [
    gauge(context),
    pairs(context),
    h("div", { class: "key" }, ...keys),
    h("ol", { class: "ctx" }, ...context.messages.map(messageRow)),
    h("p", { class: "as-json" }, h("span", { class: "soft" }, "As JSON: "), ...buttons),
  ];
}

/** @param {any} message */
function messageRow(message) {
  return h("li", { dataset: { role: message.role } }, h("span", { class: "role" }, message.tool_calls ? "tool call" : message.role), h("p", null, h("bdi", null, folded(textOf(message), LONG, LONG - 60))));
}

/** The body in the style of a vendor, to be copied. */
async function json(/** @type {any} */ call, /** @type {string} */ style, /** @type {string} */ name, /** @type {any} */ parameters) {
  const read = get(pathOf(call), { ...parameters, style });
  await showJson(`The next LLM call, as ${name} takes it`, read);
}
