// @ts-check
/** Words that are looked for in what was said: whole words, in any form, as the search finds them. */
import { h } from "../base/dom.js";

const WORD = /[\p{L}\p{N}\p{M}]+/gu;
const WITHOUT_SPACES = /[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]/;
const SHORT = 2; // letters up to which a word is passed over beside longer ones
const STEM = 4; // letters that two forms of a word share at least
const ENDING = 3; // letters in which they differ at most

/** A finder of these words, or null where there are none. @param {string | null} query */
export function finder(query) {
  const all = [...new Set([...(query ?? "").matchAll(WORD)].map(([word]) => plain(word)))];
  const long = all.filter((word) => word.length > SHORT || WITHOUT_SPACES.test(word));
  const looked = long.length ? long : all;
  if (!looked.length) return null;
  /** The words of a text that are looked for, and which of them they are. @param {string} text */
  const hits = (text) => [...text.matchAll(WORD)].flatMap((match) => hitsIn(match[0], match.index, looked));
  return {
    words: query ?? "",
    /** @param {string} text */
    counts: (text) => new Set(hits(text).map((hit) => hit.word)).size,
    /** A text with the words marked. @param {string} text */
    mark(text) {
      const parts = [];
      let at = 0;
      for (const { from, to } of hits(text)) {
        if (from < at) continue;
        parts.push(text.slice(at, from), h("mark", null, text.slice(from, to)));
        at = to;
      }
      return parts.length ? [...parts, text.slice(at)] : null;
    },
  };
}

/** @param {string} word */
const plain = (word) => word.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();

/** @param {string} text a word of a text, and where it is @param {number} index @param {string[]} looked */
function hitsIn(text, index, looked) {
  const found = plain(text);
  return looked.flatMap((word) => {
    if (!WITHOUT_SPACES.test(word)) return isForm(found, word) ? [{ from: index, to: index + text.length, word }] : [];
    const at = text.indexOf(word);
    return at < 0 ? [] : [{ from: index + at, to: index + at + word.length, word }];
  });
}

/** Whether two words are forms of one. @param {string} one @param {string} other */
function isForm(one, other) {
  if (one === other) return true;
  let shared = 0;
  while (shared < one.length && one[shared] === other[shared]) shared += 1;
  return shared >= STEM ? Math.max(one.length, other.length) - shared <= ENDING : shared === other.length && one.length - shared === 1;
}

/** The messages that say all of the words; where none does, those that say any. @param {any} finder @param {import("../call/live.js").Call} call @returns {string[]} */
export function keysWith(finder, call) {
  const counted = call.keys.map((key) => ({ key, count: finder.counts(textOf(call.messages.get(key))) }));
  const most = counted.reduce((count, one) => Math.max(count, one.count), 0);
  return most ? counted.filter((one) => one.count === most).map((one) => one.key) : [];
}

/** @param {any} message */
const textOf = (message) => message.metadata?.original ?? message.content;
