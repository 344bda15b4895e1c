// @ts-check
/** The timeline of a call: caller above the line, agent below, what was not heard hatched, cuts as strokes, tools as a line. */
import { h, replace, s } from "../base/dom.js";
import { length } from "../base/times.js";

/** @typedef {import("./marks.js").Picture} Picture */
/** @typedef {{x: number, width: number, turn: number, name?: string}} Rect */

const TICK_PX = 84; // at least between two times
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400];
const LARGE = { left: 44, right: 14, height: 86, top: 18, lane: 19, mid: 38, tool: 59, words: true };
const SMALL = { left: 0, right: 2, height: 24, top: 1, lane: 9, mid: 11, tool: 21, words: false };
/** @type {Record<string, [string, string]>} the look of a lane, and the words for it */
const LANES = { agent: ["ag", "agent"], unheard: ["un", "generated, not heard"], user: ["ca", "caller"], tool: ["tk", "tool"] };
const DRAW_MS = 250; // at least between two drawings while a call grows

/**
 * The timeline in a container, drawn at the width that it has.
 * @param {HTMLElement} container
 * @param {{small?: boolean, pick: (time: number, turn: number | null, lane: string) => void}} given `pick` is called where one clicks
 */
export function callTimeline(container, { small = false, pick }) {
  const sizes = small ? SMALL : LARGE;
  const place = h("div", { class: "call-timeline-place" });
  const [range, head] = [h("div", { class: "seen", hidden: true }), h("div", { class: "playhead", hidden: true })];
  const strip = h("div", { class: "strip", title: "Click to go there" }, place, range, head);
  const key = Object.entries({ ca: "caller", ag: "agent, heard", un: "generated, not heard", tk: "tool" });
  const words = h("figcaption", { class: "key" }, ...key.map(([look, words]) => h("span", null, h("i", { class: `k-${look}` }), words)));
  container.append(small ? strip : h("figure", { class: "call-timeline" }, strip, words));
  /** @type {{picture: Picture, words: string, live: boolean} | null} */
  let shown = null;
  let timer = 0;
  let marks = { from: NaN, to: NaN, playing: NaN };
  const width = () => Math.max(200, Math.floor(place.clientWidth));
  const scale = () => (width() - sizes.left - sizes.right) / Math.max(1, (shown?.picture.to ?? 0) - (shown?.picture.from ?? 0));
  const x = (/** @type {number} */ time) => sizes.left + (Math.min(Math.max(time, shown?.picture.from ?? 0), shown?.picture.to ?? 0) - (shown?.picture.from ?? 0)) * scale();
  const mark = () => {
    const isAll = marks.from <= (shown?.picture.from ?? 0) && marks.to >= (shown?.picture.to ?? 0);
    range.hidden = !shown || isAll || !(marks.to > marks.from);
    head.hidden = !shown || Number.isNaN(marks.playing);
    if (!range.hidden) Object.assign(range.style, { insetInlineStart: `${x(marks.from)}px`, inlineSize: `${Math.max(3, x(marks.to) - x(marks.from))}px` });
    if (!head.hidden) head.style.insetInlineStart = `${x(marks.playing)}px`;
  };
  const paint = () => {
    timer = 0;
    if (!shown || !place.clientWidth) return;
    replace(place, timelineImage(shown.picture, width(), shown.words, shown.live, sizes));
    mark();
  };
  strip.addEventListener("click", (/** @type {MouseEvent} */ event) => {
    if (!shown) return;
    const { turn, lane } = /** @type {any} */ (event.target).dataset ?? {};
    const time = shown.picture.from + (event.clientX - place.getBoundingClientRect().left - sizes.left) / scale();
    pick(time, turn === undefined ? null : Number(turn), lane ?? "");
  });
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
    /** Mark a part of the call, as the one that one reads. @param {number} [from] @param {number} [to] */
    look(from = NaN, to = NaN) {
      marks = { ...marks, from, to };
      mark();
    },
    /** Mark a moment, as the one that one hears. @param {number} time */
    play(time) {
      marks = { ...marks, playing: time };
      mark();
    },
    close() {
      watcher.disconnect();
      clearTimeout(timer);
    },
  };
}

/** @param {Picture} picture @param {number} width @param {string} words @param {boolean} live @param {typeof LARGE} sizes */
function timelineImage(picture, width, words, live, { left, right, height, top, lane, mid, tool, words: hasWords }) {
  const span = Math.max(1, picture.to - picture.from);
  const scale = (width - left - right) / span;
  const x = (/** @type {number} */ time) => left + (time - picture.from) * scale;
  const image = s(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": words },
    s("line", { class: "mid", x1: left, x2: width - right, y1: mid, y2: mid }),
    hasWords ? [s("text", { x: 0, y: 30, class: "lane" }, "caller"), s("text", { x: 0, y: 55, class: "lane" }, "agent"), ticks(span, scale, left)] : null,
  );
  for (const [name, [look, what]] of Object.entries(LANES)) {
    const y = name === "user" ? top : name === "tool" ? tool : mid + 1;
    for (const rect of rects(picture, name, x)) {
      const title = s("title", null, rect.name ?? `turn ${rect.turn}: ${what}`);
      const drawn = { x: rect.x.toFixed(1), y, width: rect.width.toFixed(1), height: name === "tool" ? 3 : lane, rx: look === "un" ? 0 : 1.5 };
      image.append(s("rect", { class: look, ...drawn, dataset: { turn: rect.turn, lane: name } }, title));
    }
  }
  for (const { at } of picture.cuts) {
    image.append(s("line", { class: "cutmark", x1: x(at).toFixed(1), x2: x(at).toFixed(1), y1: top, y2: mid + lane + 1 }));
  }
  if (live) image.append(s("line", { class: "now", x1: width - right, x2: width - right, y1: top - 1, y2: mid + lane + 2 }));
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

/** Times below the lanes, as many as have room. @param {number} span @param {number} scale @param {number} left */
function ticks(span, scale, left) {
  const step = (STEPS.find((seconds) => seconds * 1000 * scale >= TICK_PX) ?? Math.ceil(span / 8000)) * 1000;
  const drawn = [];
  for (let time = 0; time <= span && drawn.length < 400; time += step) {
    const x = (left + time * scale).toFixed(1);
    const anchor = time ? "middle" : "start";
    drawn.push(s("line", { class: "grid", x1: x, x2: x, y1: 62, y2: 67 }));
    if (span * scale - time * scale > 12 || !time) drawn.push(s("text", { x, y: 79, "text-anchor": anchor }, length(time)));
  }
  return drawn;
}
