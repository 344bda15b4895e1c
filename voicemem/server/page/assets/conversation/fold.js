// @ts-check
/** Long texts show their beginning; a button shows the rest in its place. */
import { h } from "../base/dom.js";

const FOLD = 4000; // characters from which a text is folded
const SHOWN = 1000; // and how many of it are shown then

/**
 * A text, or the beginning of a long one with a button for all of it.
 * @param {string} text
 * @param {number} [fold]
 * @param {number} [shown]
 */
export function folded(text, fold = FOLD, shown = SHOWN) {
  if (text.length <= fold) return text;
  const splits = (text.codePointAt(shown - 1) ?? 0) > 0xffff; // the last one shown would be half a character
  const place = h("span", null, text.slice(0, splits ? shown - 1 : shown));
  const words = `… all ${text.length.toLocaleString("en")} characters`;
  const more = h("button", { class: "more-text", type: "button" }, words);
  more.addEventListener("click", () => {
    place.textContent = text;
    more.remove();
  });
  return [place, more];
}
