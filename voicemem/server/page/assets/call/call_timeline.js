// @ts-check
/** The timeline of a call: caller above the line, agent below, what nobody heard hatched, cuts as strokes, tools as a line. */
import { h, replace, s } from "../base/dom.js";
import { length } from "../base/times.js";

/** @typedef {import("./marks.js").Picture} Picture */
/** @typedef {{x: number, width: number, turn: number, name?: string}} Rect */

const LEFT = 44;
const RIGHT = 14;
const HEIGHT = 86;
const TICK_PX = 84; // at least between two times
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400];
const LANES = {
  agent: { look: "ag", y: 39, height: 19, rx: 1.5, words: "agent" },
  unheard: { look: "un", y: 39, height: 19, rx: 0, words: "generated, never heard" },
  user: { look: "ca", y: 18, height: 19, rx: 1.5, words: "caller" },
  tool: { look: "tk", y: 59, height: 3, rx: 0, words: "tool" },
};
const DRAW_MS = 250; // at least between two drawings while a call grows

/** The timeline in a container, drawn at the width that it has. @param {HTMLElement} container */
export function callTimeline(container) {
  const place = h("div", { class: "call-timeline-place" });
  const key = Object.entries({ ca: "caller", ag: "agent, heard", un: "generated, never heard", tk: "tool" });
  const figure = h(
    "figure",
    { class: "call-timeline" },
    place,
    h("figcaption", { class: "key" }, ...key.map(([look, words]) => h("span", null, h("i", { class: `k-${look}` }), words))),
  );
  container.append(figure);
  /** @type {{picture: Picture, words: string, live: boolean} | null} */
  let shown = null;
  let timer = 0;
  const paint = () => {
    timer = 0;
    const width = Math.max(200, Math.floor(place.clientWidth));
    if (shown) replace(place, timelineImage(shown.picture, width, shown.words, shown.live));
  };
  const watcher = new ResizeObserver(paint);
  watcher.observe(place);
  return {
    /** @param {Picture} picture @param {string} words @param {boolean} live */
    draw(picture, words, live) {
      const first = shown === null;
      shown = { picture, words, live };
      if (first) paint();
      else if (!timer) timer = window.setTimeout(paint, DRAW_MS);
    },
    close() {
      watcher.disconnect();
      clearTimeout(timer);
    },
  };
}

/** @param {Picture} picture @param {number} width @param {string} words @param {boolean} live */
function timelineImage(picture, width, words, live) {
  const span = Math.max(1, picture.to - picture.from);
  const scale = (width - LEFT - RIGHT) / span;
  const x = (/** @type {number} */ time) => LEFT + (time - picture.from) * scale;
  const image = s(
    "svg",
    { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": words },
    s("line", { class: "mid", x1: LEFT, x2: width - RIGHT, y1: 38, y2: 38 }),
    s("text", { x: 0, y: 30, class: "lane" }, "caller"),
    s("text", { x: 0, y: 55, class: "lane" }, "agent"),
    ticks(span, scale),
  );
  for (const [lane, { look, y, height, rx, words: name }] of Object.entries(LANES)) {
    for (const rect of rects(picture, lane, x)) {
      const title = s("title", null, rect.name ?? `turn ${rect.turn}: ${name}`);
      const drawn = { x: rect.x.toFixed(1), y, width: rect.width.toFixed(1), height, rx };
      image.append(s("rect", { class: look, ...drawn, "data-turn": rect.turn }, title));
    }
  }
  for (const { at } of picture.cuts) {
    image.append(s("line", { class: "cutmark", x1: x(at).toFixed(1), x2: x(at).toFixed(1), y1: 18, y2: 58 }));
  }
  if (live) image.append(s("line", { class: "now", x1: width - RIGHT, x2: width - RIGHT, y1: 12, y2: 64 }));
  return image;
}

/** Bars of a lane; those that are too small to be told apart become one. */
function rects(/** @type {Picture} */ picture, /** @type {string} */ lane, /** @type {(time: number) => number} */ x) {
  const bars = picture.bars.filter((bar) => bar.lane === lane);
  bars.sort((one, other) => one.from - other.from);
  /** @type {Rect[]} */
  const drawn = [];
  for (const { from, to, turn, name } of bars) {
    const rect = { x: x(from), width: Math.max(1.5, x(to) - x(from)), turn, name };
    const last = drawn.at(-1);
    const merges = last && rect.x - (last.x + last.width) < 0.4 && rect.width < 3 && last.width < 40;
    if (merges) last.width = Math.max(last.width, rect.x + rect.width - last.x);
    else drawn.push(rect);
  }
  return drawn;
}

/** Times below the lanes, as many as have room. @param {number} span @param {number} scale */
function ticks(span, scale) {
  const step = (STEPS.find((seconds) => seconds * 1000 * scale >= TICK_PX) ?? Math.ceil(span / 8000)) * 1000;
  const drawn = [];
  for (let time = 0; time <= span && drawn.length < 400; time += step) {
    const x = (LEFT + time * scale).toFixed(1);
    const anchor = time ? "middle" : "start";
    drawn.push(s("line", { class: "grid", x1: x, x2: x, y1: 62, y2: 67 }));
    if (span * scale - time * scale > 12 || !time) drawn.push(s("text", { x, y: 79, "text-anchor": anchor }, length(time)));
  }
  return drawn;
}
