// @ts-check
/** The bar below a live call: whether the page follows it. Scrolling up stops following, never the tail. */
import { h, replace } from "../base/dom.js";

const TICK_MS = 1000;

/** @param {HTMLElement} container @param {import("./live.js").Call} call */
export function followBar(container, call) {
  const words = h("span", { class: "follow-words" });
  const since = h("span", { class: "soft num" });
  const button = h("button", { class: "btn", type: "button" });
  const bar = h("div", { class: "follow", hidden: true }, words, since, button);
  container.append(bar);
  const state = { follows: !location.hash, y: window.scrollY, height: 0, shown: "" };
  const tick = () => {
    const seconds = Math.max(0, Math.round((Date.now() - call.lastEvent) / 1000));
    since.textContent = call.lastEvent ? `last event ${seconds < 1 ? "just now" : `${seconds} s ago`}` : "";
  };
  const write = () => {
    const shown = call.connection === "lost" ? "lost" : state.follows ? "following" : "not following";
    bar.hidden = call.connection === "over" || call.session.state !== "running";
    if (shown === state.shown) return;
    state.shown = shown;
    const lost = shown === "lost";
    const text = lost ? "connection lost, trying again" : shown;
    const look = lost ? "state wait" : state.follows ? "state live" : "state";
    replace(words, h("span", { class: look }, h("span", { class: lost ? "dot wait" : "dot" }), text));
    button.textContent = state.follows ? "Stop following" : "Follow";
  };
  const follow = (/** @type {boolean} */ follows) => {
    state.follows = follows;
    if (follows) toTheEnd(state);
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
    /** @param {import("./live.js").Change} change @param {boolean} isFirst */
    update(change, isFirst) {
      write();
      tick();
      if (change.keys.size && !isFirst && state.follows && !bar.hidden) toTheEnd(state);
    },
    close() {
      window.removeEventListener("scroll", scrolled);
      clearInterval(timer);
    },
  };
}

/** Scroll down; the page's own scrolling is not taken for a person's. @param {{y: number, height: number}} state */
function toTheEnd(state) {
  const { scrollHeight: height } = document.documentElement;
  window.scrollTo({ top: height });
  Object.assign(state, { y: window.scrollY, height });
}
