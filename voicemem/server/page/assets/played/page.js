// @ts-check
/** The tab of a replayed true call: what was really played, word by word, beside what the memory says of it. */
import { get } from "../base/api.js";
import { h, replace } from "../base/dom.js";
import { length } from "../base/times.js";
import { partsOf } from "../call/words.js";

/** @typedef {[text: string, from: number | null, until: number | null, heard: boolean]} Word */
/** @typedef {{turn_id: number, heard: string, cut_ms: number | null, words: Word[]}} Reply */
/** @typedef {{call: string, evidence: string, began_ms: number, ended_ms: number, replies: Reply[]}} Played */

const TICK_MS = 100; // while the call runs: words come about three a second

/** @param {HTMLElement} container @param {{id: string, call: import("../call/live.js").Call}} given */
export function show(container, { id, call }) {
  const place = h("section", { class: "played" }, h("p", { class: "soft" }, "…"));
  container.append(place);
  /** @type {Played | null} */
  let played = null;
  let timer = 0;
  const draw = () => {
    if (!played) return;
    const now = Date.now();
    replace(place, ...said(played, call.list(), now));
    if (now > played.ended_ms) clearInterval(timer);
  };
  get(`/v1/sessions/${encodeURIComponent(id)}/data`).then(
    (data) => {
      played = data?.played ?? null;
      if (!played) return replace(place, h("p", { class: "soft" }, "It is not known what was played on this call."));
      timer = window.setInterval(draw, TICK_MS);
      draw();
    },
    (problem) => replace(place, h("p", { class: "soft", role: "alert" }, problem.detail ?? String(problem))),
  );
  const unlisten = call.listen(draw);
  return {
    close() {
      clearInterval(timer);
      unlisten();
    },
  };
}

/** @param {Played} played @param {import("../call/words.js").Message[]} messages @param {number} now */
function said(played, messages, now) {
  const pairs = pairsOf(played.replies, messages);
  const known = pairs.filter(({ reply, message }) => message && isOver(reply, played, now));
  const exact = known.filter(({ reply, message }) => words(message?.content ?? "") === words(reply.heard)).length;
  return [
    h("p", { class: "note" }, `The call “${played.call}”, replayed with evidence of the kind “${played.evidence.replaceAll("_", " ")}”. ${exact} of ${known.length} replies are remembered to the word.`),
    h(
      "div",
      { class: "wide-table", tabindex: 0, role: "region", "aria-label": "The replies of the call" },
      h(
        "table",
        null,
        h("caption", { class: "sr" }, "The replies of the call"),
        h("thead", null, h("tr", null, ["Time", "Played", "Remembered", "Difference in words"].map((one) => h("th", { scope: "col" }, one)))),
        h("tbody", null, pairs.map((pair) => row(pair, played, now))),
      ),
    ),
  ];
}

/** @param {{reply: Reply, message: any}} pair @param {Played} played @param {number} now */
function row({ reply, message }, played, now) {
  const first = reply.words.find(([, from]) => from !== null)?.[1];
  const parts = message ? partsOf(message) : null;
  const apart = message && isOver(reply, played, now) ? words(message.content) - words(reply.heard) : null;
  return h(
    "tr",
    null,
    h("td", { class: "num" }, first ? length(first - played.began_ms) : "–"),
    h("td", { dataset: { part: "played", label: "Played" } }, h("bdi", null, reply.words.map((word) => wordOf(word, now)))),
    h("td", { dataset: { part: "memory", label: "Remembered" } }, parts ? h("bdi", null, parts.heard, h("span", { class: "ahead" }, parts.ahead), h("del", null, parts.unheard)) : null),
    h("td", { class: "num", dataset: { label: "Difference in words" } }, apart === null ? "" : apart === 0 ? "0" : `${apart > 0 ? "+" : "−"}${Math.abs(apart)}`),
  );
}

/** A word: heard, being played now, not played yet, or never. @param {Word} word @param {number} now */
function wordOf([text, from, until, heard], now) {
  if (!heard) return h("del", null, text);
  if (from === null || until === null || until <= now) return h("span", null, text);
  return h("span", { class: from <= now ? "playing" : "ahead" }, text);
}

/** Each reply with the message that is about it: of the same turn, in the same order. @param {Reply[]} replies @param {any[]} messages */
function pairsOf(replies, messages) {
  const left = messages.filter((message) => message.role === "assistant");
  return replies.map((reply) => {
    const place = left.findIndex((message) => message.turn_id === reply.turn_id);
    return { reply, message: place < 0 ? null : left.splice(place, 1)[0] };
  });
}

/** @param {Reply} reply @param {Played} played @param {number} now */
const isOver = (reply, played, now) => now > (reply.cut_ms ?? reply.words.at(-1)?.[2] ?? played.ended_ms);

/** How many words a text has; of writing without spaces, how many characters. @param {string} text */
function words(text) {
  const whole = /[\u3040-\u30ff\u3400-\u9fff]/.test(text) ? text.replace(/\s/g, "") : "";
  return whole ? [...whole].length : (text.match(/\S+/g) ?? []).length;
}
