// @ts-check
/** The tab of what is remembered: the document and its versions, summaries, what was forgotten, and what lasts. */
import { get } from "../base/api.js";
import { h, replace } from "../base/dom.js";
import { documentPanels } from "../memory/document.js";
import { linesOf } from "../memory/difference.js";
import { longTermPanel } from "../memory/long_term.js";
import { panel, rememberedPanels } from "../memory/remembered.js";

/** @param {HTMLElement} container @param {{session: any, id: string, call?: any}} given */
export function show(container, { session, id, call }) {
  const path = `/v1/sessions/${encodeURIComponent(id)}`;
  const [left, right] = [h("div"), h("div")];
  container.append(h("div", { class: "two even" }, left, right));
  const kept = documentPanels(left, path, session.config);
  const data = h("div", null, h("p", { class: "soft" }, "…"));
  left.append(panel("Data", data));
  const remembered = rememberedPanels(right, session.config);
  const lasting = longTermPanel(right, path);
  let shown = "";
  const draw = (/** @type {any} */ memory) => {
    const now = JSON.stringify(memory);
    if (now === shown) return;
    shown = now;
    remembered.draw(memory);
    kept.refresh();
    lasting.refresh();
    showData(data, path);
  };
  if (call?.memory) draw(call.memory);
  else get(`${path}/memory`).then(draw, () => draw(null));
  const unlisten = call?.listen((/** @type {any} */ change) => change.memory && draw(call.memory));
  return { close: () => unlisten?.() };
}

/** @param {HTMLElement} place @param {string} path */
async function showData(place, path) {
  const answer = await get(`${path}/data`).catch((problem) => ({ problem }));
  if (answer.problem) return replace(place, h("p", { class: "soft" }, answer.problem.detail));
  const data = answer.data ?? answer;
  const isEmpty = !data || Object.keys(data).length === 0;
  return replace(place, isEmpty ? h("p", { class: "soft" }, "This call has no data.") : h("pre", { tabindex: 0, "aria-label": "Data" }, linesOf(data).join("\n")));
}
