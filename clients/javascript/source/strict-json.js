/** JSON within the limits of a frame, found on the sender's side: beyond them the server closes the connection. */

export const MAX_FRAME_BYTES = 1024 * 1024;
export const MAX_VALUES = 131_072;
export const MAX_DEPTH = 32;
/** A surrogate without its other half, as `JSON.stringify` writes it: no UTF-8 can hold it. */
const LONE_SURROGATE = /(?<!\\)(?:\\\\)*\\ud[89a-f]/;
const ENCODER = new TextEncoder();
/** Where short texts are encoded, so that nothing is allocated for them. */
const SCRATCH = new Uint8Array(8192);

/**
 * How many bytes a text has in UTF-8.
 * @param {string} text
 */
export function utf8Bytes(text) {
  const fits = 3 * text.length <= SCRATCH.length;
  return fits ? ENCODER.encodeInto(text, SCRATCH).written : ENCODER.encode(text).length;
}

/**
 * Why JSON cannot be sent as a frame: a code and a sentence; null if it can.
 * @param {string} text
 * @param {number} bytes
 * @returns {[code: string, detail: string] | null}
 */
export function brokenLimit(text, bytes) {
  if (bytes > MAX_FRAME_BYTES) return ["too_big", "A frame may be at most 1 MiB."];
  if (text.includes("\\ud") && LONE_SURROGATE.test(text)) return ["invalid_json", "A text of the event cannot be encoded as UTF-8."];
  const { depth, values } = shape(text);
  if (values > MAX_VALUES) return ["too_big", `A frame or body may have at most ${MAX_VALUES.toLocaleString("en")} values.`];
  if (depth > MAX_DEPTH) return ["too_deep", "The JSON is nested deeper than 32 levels."];
  return null;
}

/**
 * How deep JSON is nested, and about how many values it has, found without making any of them.
 * @param {string} text
 */
export function shape(text) {
  let level = 0;
  let depth = 0;
  let values = 1;
  for (let index = 0; index < text.length; index += 1) {
    const character = text.charCodeAt(index);
    if (character === 0x22) {
      index = endOfString(text, index);
    } else if (character === 0x2c) {
      values += 1;
    } else if (character === 0x5b || character === 0x7b) {
      values += 1;
      level += 1;
      depth = Math.max(depth, level);
    } else if (character === 0x5d || character === 0x7d) {
      level -= 1;
    }
  }
  return { depth, values };
}

/**
 * Where the string ends that begins at `index`.
 * @param {string} text
 * @param {number} index
 */
function endOfString(text, index) {
  let end = text.indexOf('"', index + 1);
  while (isEscaped(text, end)) end = text.indexOf('"', end + 1);
  return end < 0 ? text.length : end;
}

/**
 * @param {string} text
 * @param {number} index of a quote
 */
function isEscaped(text, index) {
  let backslashes = 0;
  while (index - backslashes > 0 && text[index - backslashes - 1] === "\\") backslashes += 1;
  return backslashes % 2 === 1;
}
