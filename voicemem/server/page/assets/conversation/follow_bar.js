// @ts-check
/** The bar below a live call: whether the page follows it. Scrolling up stops following, never the tail. */
import { h, replace } from "../base/dom.js";
import { length } from "../base/times.js";

const TICK_MS = 1000;
const FRAMES = 5; // after which it holds
const MARGIN = 8; // below the end of the conversation

/** @param {HTMLElement} container @param {import("../call/live.js").Call} call */
export function followBar(container, call) {
  const words = h("span", { class: "follow-words" });
  const since = h("span", { class: "soft num" });
  const button = h("button", { class: "btn", type: "button" });
  const bar = h("div", { class: "follow", hidden: true }, words, since, button);
  container.append(bar);
  const isSent = location.hash || /[?&](find|in|only)=/.test(location.search);
  const state = { follows: !isSent, y: window.scrollY, height: 0, shown: "", frame: 0, own: 0 };
  const tick = () => {
    const seconds = Math.max(0, Math.round((Date.now() - call.lastEvent) / 1000));
    const words = seconds < 1 ? "just now" : `${seconds < 120 ? `${seconds} s` : length(1000 * seconds)} ago`;
    if (call.lastEvent) replace(since, h("span", { class: "more-words" }, "last event "), words);
  };
  const write = () => {
    const shown = call.connection === "lost" ? "lost" : state.follows ? "following" : "not following";
    bar.hidden = call.connection === "over" || call.session.state !== "running";
    if (shown === state.shown) return;
    state.shown = shown;
    const lost = shown === "lost";
    const text = lost ? "Connection lost. Trying again…" : shown;
    const look = lost ? "state wait" : state.follows ? "state live" : "state";
    replace(words, h("span", { class: look }, h("span", { class: lost ? "dot wait" : "dot" }), text));
    button.textContent = state.follows ? "Stop following" : "Follow";
  };
  const follow = (/** @type {boolean} */ follows) => {
    state.follows = follows;
    if (follows) toTheEnd(container, state);
    write();
  };
  const scrolled = () => {
    const { scrollHeight: height } = document.documentElement;
    const isPerson = height >= state.height; // a page that became shorter scrolls by itself
    if (isPerson && window.scrollY < state.y - 4 && state.follows && !bar.hidden) follow(false);
    Object.assign(state, { y: window.scrollY, height });
  };
  button.addEventListener("click", () => follow(!state.follows));
  window.addEventListener("scroll", scrolled, { passive: true });
  const timer = window.setInterval(tick, TICK_MS);
  return {
    following: () => state.follows,
    follow,
    /** @param {import("../call/live.js").Change} change */
    update(change) {
      write();
      tick();
      if (change.keys.size && state.follows && !bar.hidden) toTheEnd(container, state);
    },
    close() {
      window.removeEventListener("scroll", scrolled);
      clearInterval(timer);
      cancelAnimationFrame(state.frame);
    },
  };
}

/**
 * Scroll to the end of the conversation; the page's own scrolling is not taken for a person's. Messages that come into view
 * for the first time are measured only some frames later, so it is looked at again until it holds.
 * @param {HTMLElement} container @param {{follows: boolean, y: number, height: number, frame: number, own: number}} state @param {number} [holds]
 */
function toTheEnd(container, state, holds = 0) {
  cancelAnimationFrame(state.frame);
  const below = container.getBoundingClientRect().bottom + MARGIN - window.innerHeight;
  const isTooFar = below < -1 && window.scrollY > 0 && window.scrollY === state.own; // what was measured is shorter
  if (below > 0 || isTooFar) {
    window.scrollTo({ top: window.scrollY + below });
    state.own = window.scrollY;
  }
  Object.assign(state, { y: window.scrollY, height: document.documentElement.scrollHeight });
  const again = below > 1 ? 0 : holds + 1;
  if (again < FRAMES) state.frame = requestAnimationFrame(() => state.follows && toTheEnd(container, state, again));
}
