// @ts-check
/** The list of messages: each is made once, moved when its place changes, and written again when it or its turn does. */
import { clear, h } from "../base/dom.js";
import { seconds } from "../base/times.js";
import { fillMessage, messageItem } from "./message.js";
import { dividersOf, paint, railOf } from "./rail.js";
import { fillTool, toolItem } from "./tool.js";
import { toolsOf } from "../call/marks.js";

/** @typedef {import("../call/live.js").Change} Change */
/** @typedef {ReturnType<typeof talkList>} TalkList */

/** @param {import("../call/live.js").Call} call @param {any} [find] the words that are marked */
export function talkList(call, find = null) {
  return {
    call,
    find,
    element: h("ol", { class: "talk-list" }),
    /** @type {Map<string, HTMLElement>} */
    items: new Map(),
    /** @type {Map<string, HTMLElement>} tool calls, by their ids */
    tools: new Map(),
    /** @type {Map<number, Set<string>>} keys by turn */
    byTurn: new Map(),
    /** when the call began, by its messages */
    start: Infinity,
    /** @type {any} what the next LLM call gets, as the panel shows it */
    usage: null,
  };
}

/** Bring the list to what the call is now. @param {TalkList} view @param {Change} change */
export function applyChange(view, change) {
  if (change.fresh) forget(view);
  change.removed.forEach((key) => remove(view, key));
  const turns = new Set(change.turns);
  for (const key of view.call.keys.filter((one) => change.keys.has(one))) {
    const message = view.call.messages.get(key);
    if (!message) continue;
    const known = view.byTurn.get(message.turn_id) ?? new Set();
    view.byTurn.set(message.turn_id, known.add(key));
    turns.add(message.turn_id);
    if (message.timestamp < view.start) {
      view.start = message.timestamp;
      for (const turn of view.byTurn.keys()) turns.add(turn);
    }
    place(view, key);
  }
  turns.forEach((turn) => fillTurn(view, turn));
  paintRail(view, change.keys);
}

/** @param {TalkList} view */
function forget(view) {
  clear(view.element);
  view.items.clear();
  view.tools.clear();
  view.byTurn.clear();
  view.start = Infinity;
}

/** @param {TalkList} view @param {string} key */
function remove(view, key) {
  view.items.get(key)?.remove();
  view.items.delete(key);
  for (const keys of view.byTurn.values()) keys.delete(key);
}

/** Put a message behind the one before it, if it is not there. @param {TalkList} view @param {string} key */
function place(view, key) {
  const { keys, messages } = view.call;
  const item = view.items.get(key) ?? messageItem(key);
  view.items.set(key, item);
  const index = keys.lastIndexOf(key);
  const before = view.items.get(keys[index - 1]);
  let known = item.previousElementSibling;
  while (known && !isMessage(known)) known = known.previousElementSibling;
  if (!item.isConnected || known !== (before ?? null)) {
    if (before) lastBehind(before).after(item);
    else view.element.prepend(item);
  }
  item.classList.toggle("turn", messages.get(keys[index - 1])?.turn_id !== messages.get(key)?.turn_id);
}

/** @param {Element} item */
const isMessage = (item) => /** @type {HTMLElement} */ (item).dataset.key !== undefined;

/** The last of the tools and lines that stand behind a message. @param {Element} item */
function lastBehind(item) {
  while (item.nextElementSibling && !isMessage(item.nextElementSibling)) item = item.nextElementSibling;
  return item;
}

/** Write the messages and tools of a turn. @param {TalkList} view @param {number} turn */
export function fillTurn(view, turn) {
  const { messages, turns } = view.call;
  const keys = view.byTurn.get(turn) ?? new Set();
  const holder = holderOf(keys, messages);
  for (const key of keys) {
    const [message, item] = [messages.get(key), view.items.get(key)];
    if (!message || !item) continue;
    fillMessage(item, { message, turn: turns.get(turn), start: view.start, answers: key === holder, find: view.find });
  }
  placeTools(view, turn);
}

/** Put the tool calls of a turn where they ran: behind what had begun by then. @param {TalkList} view @param {number} turn */
function placeTools(view, turn) {
  const tools = toolsOf(view.call.turns.get(turn));
  if (!tools.length) return;
  const said = [...(view.byTurn.get(turn) ?? [])].map((key) => /** @type {any} */ ({ item: view.items.get(key), ...view.call.messages.get(key) }));
  said.sort((one, other) => one.timestamp - other.timestamp);
  /** @type {Map<any, Element>} the last that stands behind a message, by the message */
  const behind = new Map();
  for (const tool of tools) {
    const item = view.tools.get(tool.call_id) ?? toolItem(tool);
    view.tools.set(tool.call_id, item);
    fillTool(item, tool, view.call.tools.get(tool.call_id), view.start);
    const begun = countUntil(said, (one) => one.timestamp <= tool.started);
    const before = said[Math.max(begun, said[0]?.role === "user" ? 1 : 0) - 1]?.item;
    const spot = before ? (behind.get(before) ?? before) : endBefore(view, turn, said[0]?.item, item);
    if (!spot) view.element.prepend(item);
    else if (spot !== item && spot.nextElementSibling !== item) spot.after(item);
    behind.set(before, item);
  }
}

/** How many of a sorted list come before the first for which this does not hold. @param {any[]} list @param {(one: any) => boolean} holds */
export function countUntil(list, holds) {
  let [low, high] = [0, list.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(list[middle])) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** What stands before a turn's first message, or at the end of earlier turns; a tool that is there already stays. */
function endBefore(/** @type {TalkList} */ view, /** @type {number} */ turn, /** @type {HTMLElement | undefined} */ first, /** @type {HTMLElement} */ item) {
  const { keys, messages } = view.call;
  const at = first ? keys.lastIndexOf(first.dataset.key ?? "") - 1 : keys.findLastIndex((key) => (messages.get(key)?.turn_id ?? turn) < turn);
  const before = view.items.get(keys[at]);
  let known = item.previousElementSibling;
  while (known && !isMessage(known)) known = known.previousElementSibling;
  if (item.isConnected && known === (before ?? null)) return item;
  return before ? lastBehind(before) : null;
}

/** The message at which the figures of a turn stand: its first reply, or else its last message. */
function holderOf(/** @type {Set<string>} */ keys, /** @type {Map<string, any>} */ messages) {
  let holder;
  for (const key of keys) {
    const message = messages.get(key);
    const known = messages.get(holder ?? "");
    if (!known || (known.role === "user" && message.role !== "user")) holder = key;
    else if (message.role === known.role && message.role !== "user" && message.timestamp < known.timestamp) holder = key;
  }
  return holder;
}

/** Say of these messages (of all without them) what the next LLM call gets. @param {TalkList} view @param {Set<string>} [keys] */
export function paintRail(view, keys) {
  if (!view.usage) return;
  const { keys: order, messages } = view.call;
  const rail = railOf(order, messages, view.usage);
  for (const key of keys ?? view.items.keys()) {
    const line = view.items.get(key)?.firstElementChild;
    if (line) paint(/** @type {HTMLElement} */ (line), rail.get(key));
  }
}

/** Draw the lines between messages: up to where is forgotten, up to where is summarised. @param {TalkList} view */
export function divide(view) {
  for (const line of view.element.querySelectorAll(".divide")) line.remove();
  if (!view.usage) return;
  const { keys, messages, memory } = view.call;
  for (const [key, lines] of dividersOf(keys, messages, view.usage, memory, seconds)) {
    const item = view.items.get(key);
    if (item) lastBehind(item).after(...lines.map((words) => h("li", { class: "divide" }, h("span", null, words))));
  }
}
