// @ts-check
/** The panel of what was found out about a call: each value, with the words that show it. */
import { h, replace } from "../base/dom.js";
import { readAnalysis } from "../call/live.js";

/** @type {Record<string, string>} */
const STATES = { waiting: "The analysis has not started yet.", running: "The analysis is in progress.", failing: "The analysis failed and will be tried again.", out_of_budget: "Today’s token budget is used up: the analysis continues tomorrow." };
const AGAIN_MS = 5000;

/**
 * @param {HTMLElement} container
 * @param {import("../call/live.js").Call} call
 * @param {(turn: number, role: string) => void} go
 */
export function analysisPanel(container, call, go) {
  const place = h("div", { class: "analysis" });
  const panel = h("section", { class: "panel", "aria-labelledby": "analysis" }, h("header", null, h("h2", { id: "analysis" }, "Analysis")), place);
  let closed = false;
  let timer = 0;
  const refresh = async () => {
    clearTimeout(timer);
    const answer = await readAnalysis(call);
    if (closed) return;
    if (panel.isConnected && !answer) timer = window.setTimeout(refresh, AGAIN_MS);
    if (!answer) return;
    if (answer.state === null && !Object.keys(answer.values).length) return panel.remove();
    if (!panel.isConnected) container.querySelector(".panel")?.before(panel);
    replace(place, ...written(answer, go));
    if (STATES[answer.state]) timer = window.setTimeout(refresh, AGAIN_MS);
  };
  return {
    refresh,
    close() {
      closed = true;
      clearTimeout(timer);
    },
  };
}

/** @param {any} answer @param {(turn: number, role: string) => void} go */
function written({ state, values, missing }, go) {
  const rows = Object.entries(values).map(([name, { value, shown_by: lines }]) =>
    h("li", null, h("p", null, h("span", { class: "soft" }, `${name}: `), h("b", null, h("bdi", null, typeof value === "string" ? value : JSON.stringify(value)))), ...lines.map((/** @type {any} */ line) => evidence(line, go))),
  );
  return [
    rows.length ? h("ul", { class: "stack" }, ...rows) : null,
    STATES[state] ? h("p", { class: "soft", role: "status" }, STATES[state]) : null,
    missing.length ? h("p", { class: "note" }, `Nothing said on the call supports: ${missing.join(", ")}.`) : null,
  ];
}

/** The words that show a value, which lead to their message. @param {any} line @param {(turn: number, role: string) => void} go */
function evidence({ turn_id: turn, role, words }, go) {
  const button = h("button", { class: "link", type: "button", on: { click: () => go(turn, role) } }, h("bdi", null, `“${words}”`));
  return h("p", { class: "note" }, role === "user" ? "caller: " : "agent: ", button);
}
