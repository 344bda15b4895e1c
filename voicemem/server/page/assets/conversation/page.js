// @ts-check
/** The tab of what was said: messages as they are and as they grow, and beside them what the next LLM call gets. */
import { h } from "../base/dom.js";
import { contextPanel } from "./context.js";
import { followBar } from "./follow_bar.js";
import { readTools } from "../call/live.js";
import { toolsOf } from "../call/marks.js";
import { applyChange, divide, fillTurn, paintRail, talkList } from "./talk_list.js";
import { partsOf, speaker } from "../call/words.js";

/** @typedef {import("../call/live.js").Change} Change */
/** @typedef {import("../call/live.js").Call} Call */

const TOLD = 600; // characters of an utterance that a screen reader is told at once

/** @param {HTMLElement} container @param {{call: Call}} given */
export function show(container, { call }) {
  const view = talkList(call);
  const told = h("p", { class: "sr", role: "status" });
  const empty = h("p", { class: "soft empty", hidden: true });
  const section = h("section", { "aria-label": "Conversation" }, told, empty, view.element);
  const aside = h("aside", null);
  container.append(h("div", { class: "two" }, section, aside));
  const bar = followBar(section, call);
  const panel = contextPanel(aside, call, (usage) => {
    view.usage = usage;
    paintRail(view);
    divide(view);
  });
  const finished = new Set();
  const asked = new Set();
  const heard = (/** @type {Change} */ change) => {
    applyChange(view, change);
    empty.hidden = view.items.size > 0 || call.connection === "loading";
    empty.textContent = call.session.state === "running" ? "Nothing was said yet." : "Nothing was said.";
    const isFirst = finished.size === 0;
    const news = finishedNow(call, change, finished);
    if (news.length && !isFirst && bar.following()) told.textContent = news.map(utterance).join(" ");
    if (news.length || changesContext(call, change, asked)) panel.refresh();
    askTools(view, change, asked);
    bar.update(change);
  };
  heard(wholeOf(call));
  const unlisten = call.listen(heard);
  return {
    close() {
      unlisten();
      panel.close();
      bar.close();
    },
  };
}

/** All that the page has of the call already, as one change. @param {Call} call @returns {Change} */
function wholeOf(call) {
  const keys = new Set(call.keys);
  const turns = new Set(call.turns.keys());
  return { fresh: true, keys, removed: new Set(), turns, memory: true, state: true };
}

/** Messages that are finished for the first time. */
function finishedNow(/** @type {Call} */ call, /** @type {Change} */ change, /** @type {Set<string>} */ known) {
  const news = [...change.keys].filter((key) => !known.has(key) && isFinished(call, key));
  news.forEach((key) => known.add(key));
  return news.map((key) => call.messages.get(key));
}

/** Whether a message is in the history. */
function isFinished(/** @type {Call} */ call, /** @type {string} */ key) {
  const message = call.messages.get(key);
  return message !== undefined && !message.metadata?.open;
}

/** Whether the next LLM call may get something else. */
function changesContext(/** @type {Call} */ call, /** @type {Change} */ change, /** @type {Set<string>} */ known) {
  const done = [...change.turns].map((turn) => `turn ${turn} ${call.turns.get(turn)?.marks?.llm_done}`);
  const news = done.filter((one) => !known.has(one));
  news.forEach((one) => known.add(one));
  if (news.length || change.fresh || change.memory || change.removed.size) return true;
  return [...change.keys].some((key) => isFinished(call, key));
}

/** Ask what the tools of changed turns were asked and answered, once for each step of theirs. */
function askTools(/** @type {any} */ view, /** @type {Change} */ change, /** @type {Set<string>} */ asked) {
  const { call } = view;
  const stamp = (/** @type {any} */ tool) => `${tool.call_id} ${tool.ended ?? ""}`;
  const wanted = [...change.turns].filter((turn) => toolsOf(call.turns.get(turn)).some((tool) => !asked.has(stamp(tool))));
  if (!wanted.length) return;
  for (const turn of wanted) for (const tool of toolsOf(call.turns.get(turn))) asked.add(stamp(tool));
  const done = () => wanted.forEach((turn) => fillTurn(view, turn));
  readTools(call, wanted.length === 1 ? wanted[0] : null).then(done, () => undefined);
}

/** A whole utterance, as a screen reader tells it. */
function utterance(/** @type {any} */ message) {
  const { heard, unheard } = partsOf(message);
  return `${speaker(message)}: ${heard.slice(0, TOLD)}${unheard ? " (cut off)" : ""}`;
}
