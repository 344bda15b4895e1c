// @ts-check
/** What stays in view of a call's head and timeline when one has scrolled past them. */
import { h, replace } from "../base/dom.js";
import { stateOf } from "./words.js";
import { callTimeline } from "./call_timeline.js";

/**
 * @param {HTMLElement} container
 * @param {HTMLElement} past what one must have scrolled past
 * @param {import("./live.js").Call} call
 * @param {(time: number, turn: number | null, lane: string) => void} pick
 */
export function compactHead(container, past, call, pick) {
  const state = h("span", { class: "state" });
  const name = h("button", { class: "link id", type: "button", title: "To the top", on: { click: () => window.scrollTo({ top: 0 }) } }, call.id);
  const place = h("div", { class: "compact-strip" });
  const bar = h("div", { class: "compact", hidden: true }, h("div", { class: "compact-words" }, name, state), place);
  container.append(bar);
  const strip = callTimeline(place, { small: true, pick });
  let last = /** @type {[any, string, boolean] | null} */ (null);
  const watcher = new IntersectionObserver(([{ isIntersecting, boundingClientRect: { top } }]) => {
    bar.hidden = isIntersecting || top > 0;
    if (!bar.hidden && last) strip.draw(...last);
  });
  watcher.observe(past);
  return {
    strip,
    /** @param {any} figures @param {string} words @param {boolean} live */
    draw(figures, words, live) {
      last = [figures.picture, words, live];
      state.className = live ? "state live" : "state soft";
      const cuts = figures.interruptions ? ` · ${figures.interruptions} cut` : "";
      replace(state, live ? h("span", { class: "dot" }) : null, `${stateOf(call.session)}${cuts}`);
      if (!bar.hidden) strip.draw(...last);
    },
    close() {
      watcher.disconnect();
      strip.close();
    },
  };
}
