// @ts-check
/** What the list is asked for. All of it stands in the address, so that reload, back and a sent link give the same. */
import { h } from "../base/dom.js";
import { setQuery } from "../base/routes.js";
import { SLOW_MS } from "./row.js";

const TYPING_MS = 350;
const HOUR_MS = 3_600_000;
const STATES = { "": "All", running: "Live", ended: "Ended" };
/** @type {Record<string, [string, number]>} */
const SPANS = { "": ["Any time", 0], "1h": ["Last hour", HOUR_MS], "24h": ["Last 24 hours", 24 * HOUR_MS], "7d": ["Last 7 days", 168 * HOUR_MS] };
/** @type {Record<string, string>} */
const WEBHOOKS = { "": "Any webhook", failed: "Webhook failed", pending: "Webhook waiting" };
const NAMES = ["q", "state", "when", "label", "user", "outcome", "interrupted", "slow", "webhook"];

/** The parameters of the API for an address. @param {URLSearchParams} query */
export function parameters(query) {
  const [, span] = SPANS[query.get("when") ?? ""] ?? SPANS[""];
  return {
    fields: "overview",
    state: query.get("state"),
    label: query.get("label"),
    user_id: query.get("user"),
    outcome: query.get("outcome"),
    started_after: span ? Date.now() - span : null,
    interrupted: query.get("interrupted"),
    slow: query.get("slow"),
    webhook: query.get("webhook"),
  };
}

/**
 * @param {URLSearchParams} query
 * @param {() => void} changed called after the address has changed
 */
export function filterBar(query, changed) {
  const set = (/** @type {Record<string, any>} */ values) => {
    setQuery({ ...values, cursor: null });
    changed();
  };
  const search = words("q", "search", "A call, a user, or words that were heard", query, set, "Search");
  const outcome = words("outcome", "text", "Outcome", query, set, "Outcome");
  outcome.toggleAttribute("hidden", !query.get("outcome"));
  const form = h(
    "form",
    { class: "bar", role: "search", "aria-label": "Calls" },
    search,
    states(query, set),
    choice("when", "Started", Object.entries(SPANS).map(([span, [words]]) => [span, words]), query, set),
    words("user", "text", "User", query, set, "User"),
    words("label", "text", "Label (key:value)", query, set, "Label"),
    outcome,
    choice("webhook", "Webhook", Object.entries(WEBHOOKS), query, set),
    h("span", { class: "toggles" }, toggle("interrupted", "true", "With cut replies", query, set),
      toggle("slow", String(SLOW_MS), "With slow replies (over 1.5 s)", query, set)),
  );
  form.addEventListener("submit", (/** @type {Event} */ event) => event.preventDefault());
  return form;
}

/** Offer the filter by outcome, once a call has one. @param {HTMLElement} form @param {Iterable<any>} rows */
export function offerOutcome(form, rows) {
  const field = form.querySelector("label:has([name=outcome])");
  if (field?.hasAttribute("hidden") && [...rows].some((row) => row.figures?.outcome)) field.removeAttribute("hidden");
}

/** Whether any of them is set. @param {URLSearchParams} query */
export const isFiltered = (query) => NAMES.some((name) => query.get(name));

/** @param {string} name @param {string} type @param {string} hint @param {URLSearchParams} query @param {(values: Record<string, any>) => void} set @param {string} label */
function words(name, type, hint, query, set, label) {
  const input = h("input", { type, placeholder: hint, name, value: query.get(name) ?? "", autocomplete: "off", spellcheck: "false", "aria-label": label });
  let timer = 0;
  const now = () => {
    clearTimeout(timer);
    if ((new URLSearchParams(location.search).get(name) ?? "") !== input.value.trim()) set({ [name]: input.value.trim() });
  };
  input.addEventListener("input", () => {
    clearTimeout(timer);
    const isWhole = name !== "label" || !input.value || /^[^:=]+[:=]./.test(input.value);
    if (isWhole) timer = window.setTimeout(() => input.isConnected && now(), TYPING_MS);
  });
  input.addEventListener("change", now);
  return h("label", { class: name === "q" ? "find" : "short" }, input);
}

/** @param {URLSearchParams} query @param {(values: Record<string, any>) => void} set */
function states(query, set) {
  const current = query.get("state") ?? "";
  const radios = Object.entries(STATES).map(([state, words]) => {
    const radio = h("input", { type: "radio", name: "state", value: state, checked: state === current });
    radio.addEventListener("change", () => set({ state }));
    return h("label", null, radio, words);
  });
  return h("fieldset", { class: "seg" }, h("legend", { class: "sr" }, "State"), ...radios);
}

/** @param {string} name @param {string} label @param {string[][]} values each with its words @param {URLSearchParams} query @param {(values: Record<string, any>) => void} set */
function choice(name, label, values, query, set) {
  const current = query.get(name) ?? "";
  const options = values.map(([value, words]) => h("option", { value, selected: value === current }, words));
  const select = h("select", { name, "aria-label": label }, ...options);
  select.addEventListener("change", () => set({ [name]: select.value }));
  return select;
}

/** @param {string} name @param {string} value @param {string} words @param {URLSearchParams} query @param {(values: Record<string, any>) => void} set */
function toggle(name, value, words, query, set) {
  const box = h("input", { type: "checkbox", name, checked: Boolean(query.get(name)) });
  box.addEventListener("change", () => set({ [name]: box.checked ? value : null }));
  return h("label", { class: "toggle" }, box, words);
}
