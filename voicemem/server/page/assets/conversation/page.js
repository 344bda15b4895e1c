// @ts-check
/** The tab of what was said: messages as they are and as they grow, and beside them what the next LLM call gets. */
import { h } from "../base/dom.js";
import { decoded } from "../base/routes.js";
import { analysisPanel } from "./analysis.js";
import { contextPanel } from "./context.js";
import { finder } from "./find.js";
import { followBar } from "./follow_bar.js";
import { readTools } from "../call/live.js";
import { toolsOf } from "../call/marks.js";
import { sheet } from "./sheet.js";
import { stepBar } from "./steps.js";
import { applyChange, countUntil, divide, fillTurn, paintRail, talkList } from "./talk_list.js";
import { partsOf, speaker } from "../call/words.js";

/** @typedef {import("../call/live.js").Change} Change */
/** @typedef {import("../call/live.js").Call} Call */

const ANNOUNCED = 600; // characters of an utterance that a screen reader announces at once

/** @param {HTMLElement} container @param {{call: Call, strip: any}} given */
export function show(container, { call, strip }) {
  const query = new URLSearchParams(location.search);
  const view = talkList(call, finder(query.get("find")));
  const announcer = h("p", { class: "sr", role: "status" });
  const empty = h("p", { class: "soft empty", hidden: true });
  const section = h("section", { "aria-label": "Conversation" });
  const aside = h("aside", { class: "sheet" });
  container.append(h("div", { class: "two" }, section, aside));
  const side = sheet(aside, "Context");
  const steps = stepBar(section, view, { more: side.button, left: () => bar.follow(false) });
  section.append(announcer, empty, view.element);
  const bar = followBar(section, call);
  const analysis = analysisPanel(aside, call, (turn, role) => (side.close(), steps.go(keyIn(call, turn, role))));
  const panel = contextPanel(aside, call, (usage) => {
    view.usage = usage;
    paintRail(view);
    divide(view);
  });
  const finished = new Set();
  const asked = new Set();
  let isThere = false;
  const heard = (/** @type {Change} */ change) => {
    applyChange(view, change);
    empty.hidden = view.items.size > 0 || call.connection === "loading";
    empty.textContent = call.session.state === "running" ? "Nothing has been said yet." : "Nothing was said.";
    const isFirst = finished.size === 0;
    const news = finishedNow(call, change, finished);
    if (news.length && !isFirst && bar.following()) announcer.textContent = news.map(utterance).join(" ");
    if (call.connection !== "loading" && (news.length || changesContext(call, change, asked))) panel.refresh();
    if (change.state || change.fresh) analysis.refresh();
    askTools(view, change, asked);
    steps.update();
    bar.update(change);
    if (!isThere && view.items.size) isThere = arrive(call, steps, query);
    scrolled();
  };
  let frame = 0;
  const scrolled = () => (frame ||= requestAnimationFrame(() => ((frame = 0), strip.look(...seen(view)))));
  window.addEventListener("scroll", scrolled, { passive: true });
  heard(wholeOf(call));
  const unlisten = call.listen(heard);
  return {
    go: steps.go,
    close() {
      window.removeEventListener("scroll", scrolled);
      cancelAnimationFrame(frame);
      unlisten();
      steps.close();
      side.close();
      analysis.close();
      panel.close();
      bar.close();
    },
  };
}

/** Go to the message that the address means: by its key, by what it says, or by its turn. @param {Call} call @param {any} steps @param {URLSearchParams} query */
function arrive(call, steps, query) {
  const key = /^#m-(.+)$/.exec(location.hash)?.[1];
  const turn = query.get("in");
  const found = steps.found().filter((/** @type {string} */ one) => turn === null || call.messages.get(one)?.turn_id === Number(turn));
  const target = key ? decoded(key) : (found[0] ?? (turn === null ? steps.found()[0] : keyIn(call, Number(turn))));
  if (target === undefined) return true;
  steps.go(target);
  return call.messages.has(target);
}

/** The message of a turn, of this role if one has it. @param {Call} call @param {number} turn @param {string} [role] */
function keyIn(call, turn, role) {
  const keys = call.keys.filter((key) => call.messages.get(key)?.turn_id === turn);
  return keys.find((key) => call.messages.get(key)?.role === role) ?? keys[0];
}

/** When the messages in view were: from when, and until when. @param {import("./talk_list.js").TalkList} view @returns {[number, number] | []} */
function seen({ call, items, element }) {
  if (!items.size || element.classList.contains("only-cuts")) return [];
  const box = (/** @type {string} */ key) => /** @type {HTMLElement} */ (items.get(key)).getBoundingClientRect();
  const first = countUntil(call.keys, (key) => box(key).bottom <= 0);
  const end = countUntil(call.keys, (key) => box(key).top < window.innerHeight);
  const at = (/** @type {number} */ place) => call.messages.get(call.keys[place])?.timestamp ?? Infinity;
  return first < end ? [at(first), at(end)] : [];
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
  const stamps = wanted.flatMap((turn) => toolsOf(call.turns.get(turn)).map(stamp));
  stamps.forEach((one) => asked.add(one));
  const done = () => wanted.forEach((turn) => fillTurn(view, turn));
  const again = () => stamps.forEach((one) => asked.delete(one)); // with the next change
  readTools(call, wanted.length === 1 ? wanted[0] : null).then(done, again);
}

/** A whole utterance, as a screen reader tells it. */
function utterance(/** @type {any} */ message) {
  const { heard, unheard } = partsOf(message);
  return `${speaker(message)}: ${heard.slice(0, ANNOUNCED)}${unheard ? " (cut off)" : ""}`;
}
