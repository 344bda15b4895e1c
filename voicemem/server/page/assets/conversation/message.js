// @ts-check
/** One message of the conversation: who, when, what was heard, what was not, and how that is known. */
import { h, replace, s } from "../base/dom.js";
import { about, length, milliseconds } from "../base/times.js";
import { folded } from "./fold.js";
import { between, cutOf, latenciesOf, SLOW_MS } from "../call/marks.js";
import { afterOf, causeOf, falseAlarms, notesOf, partsOf, speaker } from "../call/words.js";

/** @typedef {import("../call/words.js").Message} Message */

const FIRST_STRONG = /[A-Za-z\u00aa-\u058f\u0900-\u1fff\u3040-\uabff]|([\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc])/;

/** An empty place for a message. @param {string} key */
export function messageItem(key) {
  return h(
    "li",
    { class: "msg", id: `m-${key}`, dataset: { key } },
    h("span", { class: "rail" }),
    h("a", { class: "at", href: `#m-${key}` }),
    h("span", { class: "who-s" }),
    h("div", { class: "said" }),
    h("div", { class: "lat" }),
  );
}

/**
 * Write a message into its place; `answers` says that the turn's figures stand here.
 * @param {HTMLElement} item
 * @param {{message: Message, turn: any, start: number, answers: boolean, find: any}} given
 */
export function fillMessage(item, { message, turn, start, answers, find }) {
  const [, at, who, said, lat] = /** @type {HTMLElement[]} */ ([...item.children]);
  const isUser = message.role === "user";
  item.classList.toggle("u", isUser);
  item.classList.toggle("a", !isUser);
  item.classList.toggle("open", message.metadata?.open === true);
  item.classList.toggle("cut", message.metadata?.interrupted === true);
  at.textContent = length(message.timestamp - start);
  who.textContent = speaker(message);
  const alarm = answers ? falseAlarms(turn, (ms) => length(ms - start)) : null;
  replace(
    said,
    wordsOf(message, turn, find),
    [...notesOf(message), alarm].map((note) => (note ? h("span", { class: "note" }, note) : null)),
  );
  replace(lat, answers ? latencyOf(turn) : null);
}

/** The text with its stroke and what was not heard. @param {Message} message @param {any} turn @param {any} find */
function wordsOf(message, turn, find) {
  const shown = (/** @type {string} */ text) => find?.mark(text) ?? folded(text);
  const { heard, ahead, unheard, apart } = partsOf(message);
  const { open, interrupted } = message.metadata ?? {};
  const ends = open ? (message.role === "user" ? "words partial" : "words coming") : "words";
  return h(
    "p",
    { class: ends, dir: FIRST_STRONG.exec(message.content || unheard)?.[1] ? "rtl" : "ltr" },
    h("bdi", { dataset: { part: "heard" } }, shown(heard)),
    ahead ? h("bdi", { class: "ahead", dataset: { part: "ahead" } }, folded(ahead)) : null,
    interrupted ? h("span", { class: "cutline" }, cutAfter(message, turn)) : null,
    unheard
      ? [
          h(
            "del",
            null,
            h("span", { class: "sr" }, apart ? "Generated instead: " : "Not heard: "),
            h("bdi", { dataset: { part: "unheard" } }, shown(unheard)),
          ),
          h("span", { class: "sr" }, " End of what was not heard."),
        ]
      : null,
  );
}

/** When a reply was cut, from its first sound, where that is known. @param {Message} message @param {any} turn */
function cutAfter(message, turn) {
  const cut = cutOf(message, turn?.marks) ?? NaN;
  const first = turn?.marks?.heard_first;
  const began = first >= message.timestamp && first <= cut ? first : message.timestamp;
  const after = between(began, cut);
  const { estimated = [] } = turn?.marks ?? {};
  const isEstimate = message.metadata?.heard === "estimated" || began !== first || ["heard_first", "cut"].some((mark) => estimated.includes(mark));
  const cause = causeOf(turn);
  const why = cause ? ` (${cause})` : "";
  return after === null ? `cut${why}` : `cut ${isEstimate ? `at ${about(after)}` : `at ${milliseconds(after)}`}${why}`;
}

/** How long the reply took, in a number and a bar of its parts. @param {any} turn */
function latencyOf(turn) {
  const { whole, asr, tool, llm, tts } = latenciesOf(turn);
  if (whole === null) return null;
  const slow = whole > SLOW_MS;
  const words = `reply after ${afterOf(turn)}${slow ? ", slow" : ""}`;
  const bar = s("svg", { viewBox: "0 0 120 8", preserveAspectRatio: "none", role: "img", "aria-label": words });
  let x = 0;
  for (const [kind, value] of /** @type {[string, number | null][]} */ ([
    ["asr", asr],
    ["tk", tool],
    ["llm", llm],
    ["tts", tts],
  ])) {
    const width = Math.min(((value ?? 0) * 120) / 2500, 120 - x);
    if (width > 0) bar.append(s("rect", { class: kind, x: x.toFixed(1), y: 0, width: width.toFixed(1), height: 8 }));
    x += width;
  }
  return [h("span", slow ? { class: "slow", title: "slow: over 1.5 s" } : { title: "reply after" }, afterOf(turn)), bar.firstChild && bar];
}
