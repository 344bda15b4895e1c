// @ts-check
/** The list of messages: each is made once, moved when its place changes, and written again when it or its turn does. */
import { clear, h } from "../base/dom.js";
import { seconds } from "../base/times.js";
import { fillMessage, messageItem } from "./message.js";
import { dividersOf, paint, railOf } from "./rail.js";

/** @typedef {import("../call/live.js").Change} Change */
/** @typedef {ReturnType<typeof talkList>} TalkList */

/** @param {import("../call/live.js").Call} call */
export function talkList(call) {
  return {
    call,
    element: h("ol", { class: "talk-list" }),
    /** @type {Map<string, HTMLElement>} */
    items: new Map(),
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
  while (known?.classList.contains("divide")) known = known.previousElementSibling;
  if (!item.isConnected || known !== (before ?? null)) {
    if (before) before.after(item);
    else view.element.prepend(item);
  }
  item.classList.toggle("turn", messages.get(keys[index - 1])?.turn_id !== messages.get(key)?.turn_id);
}

/** Write the messages of a turn. @param {TalkList} view @param {number} turn */
export function fillTurn(view, turn) {
  const { messages, turns, tools } = view.call;
  const keys = view.byTurn.get(turn) ?? new Set();
  const holder = holderOf(keys, messages);
  for (const key of keys) {
    const [message, item] = [messages.get(key), view.items.get(key)];
    if (!message || !item) continue;
    fillMessage(item, { message, turn: turns.get(turn), tools, start: view.start, answers: key === holder });
  }
}

/** The message at which the figures and tools of a turn stand: its first reply, or else its last message. */
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
    view.items.get(key)?.after(...lines.map((words) => h("li", { class: "divide" }, h("span", null, words))));
  }
}
