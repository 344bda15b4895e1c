// @ts-check
/** The bar above the conversation: from one cut reply, or one message that was found, to the next; `n` and `p` do it by key. */
import { h, replace } from "../base/dom.js";
import { setQuery } from "../base/routes.js";
import { keysWith } from "./find.js";

const FRAMES = 8; // in which messages that come into view are measured

/**
 * @param {HTMLElement} container
 * @param {import("./talk_list.js").TalkList} view
 * @param {{more: any, left: () => void}} given `more` stands at the end of the bar; `left` is called when one goes to a message
 */
export function stepBar(container, view, { more, left }) {
  const { call } = view;
  const state = { current: "", cuts: /** @type {string[]} */ ([]), found: /** @type {string[]} */ ([]) };
  const go = (/** @type {string | undefined} */ key) => {
    if (key === undefined || !view.items.has(key)) return;
    only(false);
    left();
    for (const old of view.element.querySelectorAll(".current")) old.classList.remove("current");
    const item = /** @type {HTMLElement} */ (view.items.get(key));
    item.classList.add("current");
    state.current = key;
    history.replaceState(null, "", `${location.pathname}${location.search}#m-${encodeURIComponent(key)}`);
    reveal(item);
    item.querySelector("a")?.focus({ preventScroll: true });
    draw();
  };
  const step = (/** @type {string[]} */ keys, /** @type {number} */ by) => go(keys[next(view, keys, state.current, by)]);
  const cuts = group("cut", "cuts", "cut", (by) => step(state.cuts, by), true);
  const found = group("match", `messages say “${view.find?.words}”`, `message says “${view.find?.words}”`, (by) => step(state.found, by), false);
  const box = h("input", { type: "checkbox", name: "only" });
  const toggle = h("label", { class: "toggle" }, box, "Only cuts");
  const hint = h("span", { class: "soft hint", hidden: true }, "Choose one to see it in the call.");
  const only = (/** @type {boolean} */ isOn) => {
    if (box.checked !== isOn) setQuery({ only: isOn ? "cuts" : null });
    box.checked = isOn;
    hint.hidden = !isOn;
    view.element.classList.toggle("only-cuts", isOn);
  };
  box.addEventListener("change", () => {
    setQuery({ only: box.checked ? "cuts" : null });
    only(box.checked);
    if (box.checked) window.scrollTo({ top: Math.min(window.scrollY, container.offsetTop - 120) });
  });
  const cutGroup = h("span", { class: "step-group" }, cuts.element, toggle, hint);
  const bar = h("div", { class: "steps", role: "group", "aria-label": "Find in this call" }, found.element, cutGroup, more);
  container.append(bar);
  const chosen = (/** @type {MouseEvent} */ event) => {
    const item = /** @type {Element} */ (event.target).closest(".msg");
    if (!box.checked || !item || !getSelection()?.isCollapsed || /** @type {Element} */ (event.target).closest("button")) return;
    event.preventDefault();
    go(/** @type {HTMLElement} */ (item).dataset.key);
  };
  const pressed = (/** @type {KeyboardEvent} */ event) => {
    const by = { n: 1, p: -1 }[event.key];
    const target = /** @type {Element} */ (event.target);
    if (!by || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (target.closest?.("input:not([type=checkbox]), select, textarea, dialog") || document.querySelector("dialog[open]")) return;
    event.preventDefault();
    step(state.cuts, by);
  };
  view.element.addEventListener("click", chosen);
  document.addEventListener("keydown", pressed);
  const draw = () => {
    cuts.draw(state.cuts, state.current);
    found.draw(state.found, state.current);
    cutGroup.hidden = !state.cuts.length;
  };
  only(new URLSearchParams(location.search).get("only") === "cuts");
  return {
    go,
    found: () => state.found,
    /** Count again what there is to go to. */
    update() {
      state.cuts = call.keys.filter((key) => call.messages.get(key)?.metadata?.interrupted);
      if (view.find) state.found = keysWith(view.find, call);
      draw();
    },
    close: () => document.removeEventListener("keydown", pressed),
  };
}

/** Two buttons and a count. @param {string} one @param {string} many @param {string} single @param {(by: number) => void} step @param {boolean} hasKeys */
function group(one, many, single, step, hasKeys) {
  const button = (/** @type {string} */ words, /** @type {number} */ by, /** @type {string} */ key) =>
    h("button", { class: "btn", type: "button", "aria-keyshortcuts": hasKeys ? key : null, title: hasKeys ? `${words} (${key})` : null, on: { click: () => step(by) } }, h("span", { class: "arrow", "aria-hidden": "true" }, by < 0 ? "‹ " : null), h("span", { class: "step-words" }, words), h("span", { class: "arrow", "aria-hidden": "true" }, by > 0 ? " ›" : null));
  const count = h("span", { class: "soft num", role: "status" });
  const element = h("span", { class: "step-group" }, button(`Previous ${one}`, -1, "p"), button(`Next ${one}`, 1, "n"), count);
  return {
    element,
    /** @param {string[]} keys @param {string} current */
    draw(keys, current) {
      element.hidden = !keys.length;
      if (!keys.length) return;
      const place = keys.indexOf(current) + 1;
      const words = `${place ? `${place} of ` : ""}${keys.length.toLocaleString("en")} ${keys.length === 1 && !place ? single : many}`;
      if (count.textContent !== words) replace(count, words);
    },
  };
}

/** The place of the next of these messages: after the one where one is, or else after what is in view. */
function next(/** @type {any} */ view, /** @type {string[]} */ keys, /** @type {string} */ current, /** @type {number} */ by) {
  const { length } = keys;
  const at = keys.indexOf(current);
  if (at >= 0 && isInView(view.items.get(current))) return (at + by + length) % length;
  const middle = window.innerHeight / 2;
  const isBelow = (/** @type {string} */ key) => view.items.get(key)?.getBoundingClientRect().top > (by > 0 ? 0 : middle);
  let [low, high] = [0, length];
  while (low < high) {
    const between = (low + high) >> 1;
    if (isBelow(keys[between])) high = between;
    else low = between + 1;
  }
  return (by > 0 ? low : low - 1 + length) % length;
}

/** @param {HTMLElement | undefined} item */
function isInView(item) {
  const { top, bottom } = item?.getBoundingClientRect() ?? { top: -1, bottom: -1 };
  return bottom > 0 && top < window.innerHeight;
}

/** Bring a message to the middle; what comes into view on the way is measured only then. @param {HTMLElement} item @param {number} [left] */
export function reveal(item, left = FRAMES) {
  item.scrollIntoView({ block: "center", behavior: "instant" });
  if (left) requestAnimationFrame(() => item.isConnected && item.classList.contains("current") && reveal(item, left - 1));
}
