// @ts-check
/** The tab of times: a waterfall of each turn from the caller's first word, and the same figures as a table. */
import { h, replace, s } from "../base/dom.js";
import { milliseconds } from "../base/times.js";
import { between, latenciesOf, SLOW_MS, toolsOf } from "./marks.js";
import { afterOf, beganBy, endedBy } from "./words.js";

/** @typedef {{look: string, from: number, to: number, words: string}} Part */

const WIDTH = 1000; // of a row, in units of its own
const LEAST_MS = 4000; // of the axis
const MOST_MS = 20_000; // from here on a long speech is cut off at the edge, and its figure says how long it was
const KEYS = { talk: "caller speaks", asr: "recogniser", tk: "tool", llm: "LLM’s first token", tts: "voice", speak: "agent speaks" };
const HEADS = ["Turn", "Began by", "Ended", ...Object.values(KEYS).slice(0, 5), "reply after", "agent speaks"];
const REFRESH_MS = 500;

/** @param {HTMLElement} container @param {{call: import("./live.js").Call}} given */
export function show(container, { call }) {
  const keys = Object.entries(KEYS).map(([look, words]) => h("span", null, h("i", { class: `k-${look}` }), words));
  const water = h("div", { class: "water" });
  const table = h("div", { class: "wide-table", tabindex: 0, role: "region", "aria-label": "Latencies of each turn" });
  container.append(h("div", { class: "key" }, ...keys), water, table);
  let timer = 0;
  const draw = () => {
    timer = 0;
    const turns = [...call.turns.values()].sort((one, other) => one.turn_id - other.turn_id);
    const rows = turns.map((turn) => ({ turn, ...partsOf(turn) }));
    replace(water, ...(rows.length ? waterfall(rows) : [h("p", { class: "soft" }, "No turns yet.")]));
    replace(table, figures(rows));
  };
  draw();
  const unlisten = call.listen((change) => {
    if ((change.turns.size || change.fresh) && !timer) timer = window.setTimeout(draw, REFRESH_MS);
  });
  return {
    close() {
      unlisten();
      clearTimeout(timer);
    },
  };
}

/**
 * The parts of a turn, in ms from its beginning: speech by its marks, what lies between by its latencies, one after another.
 * @param {any} turn
 */
function partsOf(turn) {
  const marks = turn.marks ?? {};
  const lengths = latenciesOf(turn);
  const talk = between(marks.user_started, marks.user_ended ?? marks.user_final);
  const isGuess = !marks.cut && marks.estimated?.includes("heard_last");
  const speak = isGuess ? null : between(marks.heard_first, marks.cut ?? marks.heard_last);
  /** @type {Part[]} */
  const parts = [];
  let at = 0;
  const put = (/** @type {string} */ look, /** @type {number | null} */ length) => {
    if (!length) return;
    const words = `${KEYS[look]} ${milliseconds(length)}`;
    parts.push({ look, from: at, to: at + length, words });
    at += length;
  };
  put("talk", talk);
  const answered = at;
  put("asr", lengths.asr);
  put("tk", lengths.tool);
  put("llm", lengths.llm);
  put("tts", lengths.tts);
  const first = between(marks.user_started, marks.heard_first);
  at = Math.max(at, answered + (lengths.whole ?? 0), first ?? 0);
  put("speak", speak);
  return { parts, answered, lengths: { ...lengths, talk, speak }, end: at, cut: marks.cut !== null && marks.cut !== undefined };
}

/** @param {any[]} rows */
function waterfall(rows) {
  const longest = rows.reduce((most, row) => Math.max(most, row.end), LEAST_MS);
  const span = Math.min(longest * 1.04, MOST_MS);
  const step = [500, 1000, 2000, 5000].find((ms) => span / ms <= 10) ?? 5000;
  const times = [];
  for (let time = 0; time <= span; time += step) times.push(time);
  const axis = times.map((time) => at(h("span", null, `${time / 1000} s`), time, span));
  return [
    h("div", { class: "axis num", "aria-hidden": "true" }, h("div", { class: "track" }, ...axis)),
    h("div", { class: "waters" }, lines(times, span), h("ol", { class: "turns" }, ...rows.map((row) => waterRow(row, span)))),
  ];
}

/** The lines of the axis, through all rows. @param {number[]} times @param {number} span */
function lines(times, span) {
  const drawn = times.map((time) => (time * WIDTH) / span).map((x) => s("line", { class: "grid", x1: x, x2: x, y1: 0, y2: 1 }));
  return s("svg", { class: "lines", viewBox: `0 0 ${WIDTH} 1`, preserveAspectRatio: "none", "aria-hidden": "true" }, ...drawn);
}

/** Put something at a time. @param {HTMLElement} element @param {number} time @param {number} span */
function at(element, time, span) {
  element.style.insetInlineStart = `${((time * 100) / span).toFixed(3)}%`;
  return element;
}

/** @param {any} row @param {number} span */
function waterRow({ turn, parts, answered, lengths, end, cut }, span) {
  const x = (/** @type {number} */ time) => (time * WIDTH) / span;
  const image = s("svg", { viewBox: `0 0 ${WIDTH} 24`, preserveAspectRatio: "none", "aria-hidden": "true" });
  for (const part of /** @type {Part[]} */ (parts)) {
    const width = Math.max(1, x(part.to) - x(part.from)).toFixed(1);
    const rect = { class: part.look, x: x(part.from).toFixed(1), y: 5, width, height: 14 };
    image.append(s("rect", rect, s("title", null, part.words)));
  }
  if (cut) image.append(s("line", { class: "cutmark", x1: x(end), x2: x(end), y1: 0, y2: 24 }));
  const below = at(h("span", { class: "below num" }, ...belowOf(turn, lengths)), Math.min(answered, span * 0.6), span);
  const beyond = end > span ? h("span", { class: "beyond num" }, `… ${milliseconds(end)}`) : null;
  const mark = cut && end <= span * 0.97 ? at(h("span", { class: "cutword" }, "cut"), end, span) : null;
  return h(
    "li",
    null,
    h("span", { class: "turn-name" }, `turn ${turn.turn_id}`),
    h("div", { class: "track" }, image, mark, beyond, below),
  );
}

/** The words below a row: the whole, and what took the most of a slow one. @param {any} turn @param {any} lengths */
function belowOf(turn, lengths) {
  if (lengths.whole === null) return [];
  const slow = lengths.whole > SLOW_MS;
  const whole = slow ? h("b", { class: "slow" }, `${afterOf(turn)}, slow`) : h("b", null, afterOf(turn));
  const most = slow ? longestPart(turn, lengths) : null;
  return most ? [whole, h("span", { class: "soft" }, `of it ${most}`)] : [whole];
}

/** @param {any} turn @param {any} lengths */
function longestPart(turn, lengths) {
  const tools = toolsOf(turn).map((tool) => ({ words: tool.name, ms: between(tool.started, tool.ended) ?? 0 }));
  const own = ["asr", "llm", "tts"].map((name) => ({ words: KEYS[name], ms: lengths[name] ?? 0 }));
  const longest = [...tools, ...own].reduce((most, part) => (part.ms > most.ms ? part : most), { words: "", ms: 0 });
  return longest.ms ? `${longest.words} ${milliseconds(longest.ms)}` : null;
}

/** @param {any[]} rows */
function figures(rows) {
  const head = HEADS.map((words, place) => h("th", { scope: "col", class: place > 2 ? "r" : "" }, words));
  const cell = (/** @type {number | null} */ ms) => h("td", { class: "r num" }, ms === null ? "–" : milliseconds(ms));
  const body = rows.map(({ turn, lengths }) => {
    const slow = lengths.whole > SLOW_MS;
    const whole = slow ? h("td", { class: "r num" }, h("b", { class: "slow" }, `${afterOf(turn)}, slow`)) : h("td", { class: "r num" }, lengths.whole === null ? "–" : afterOf(turn));
    return h(
      "tr",
      null,
      h("th", { scope: "row", class: "num" }, String(turn.turn_id)),
      h("td", null, beganBy(turn)),
      h("td", null, endedBy(turn)),
      ...["talk", "asr", "tool", "llm", "tts"].map((name) => cell(lengths[name])),
      whole,
      cell(lengths.speak),
    );
  });
  return h("table", null, h("caption", { class: "sr" }, "Latencies of each turn"), h("thead", null, h("tr", null, ...head)), h("tbody", null, ...body));
}
