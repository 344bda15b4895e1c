// @ts-check
/** Which lines of a text are new, gone or kept, against another text. Pure. */

const MOST = 4_000_000; // cells of the table that is compared; above that the changed middle is shown as a whole

/** @typedef {{kind: "same" | "new" | "gone", line: string}} Line */

/** A document as lines: text as it is, anything else as JSON. @param {any} content @returns {string[]} */
export function linesOf(content) {
  if (content === null || content === undefined || content === "") return [];
  return (typeof content === "string" ? content : JSON.stringify(content, null, 2)).split("\n");
}

/** @param {string[]} before @param {string[]} after @returns {Line[]} */
export function difference(before, after) {
  let first = 0;
  while (first < before.length && first < after.length && before[first] === after[first]) first += 1;
  let last = 0;
  const shorter = Math.min(before.length, after.length) - first;
  while (last < shorter && before[before.length - 1 - last] === after[after.length - 1 - last]) last += 1;
  const old = before.slice(first, before.length - last);
  const now = after.slice(first, after.length - last);
  const middle = old.length * now.length > MOST ? [...marked("gone", old), ...marked("new", now)] : compared(old, now);
  return [...marked("same", after.slice(0, first)), ...middle, ...marked("same", after.slice(after.length - last))];
}

/** @param {"same" | "new" | "gone"} kind @param {string[]} lines @returns {Line[]} */
const marked = (kind, lines) => lines.map((line) => ({ kind, line }));

/** By the longest common subsequence. @param {string[]} old @param {string[]} now @returns {Line[]} */
function compared(old, now) {
  const width = now.length + 1;
  const longest = new Uint32Array((old.length + 1) * width);
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = now.length - 1; j >= 0; j -= 1) {
      const skipped = Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
      longest[i * width + j] = old[i] === now[j] ? longest[(i + 1) * width + j + 1] + 1 : skipped;
    }
  }
  /** @type {Line[]} */
  const lines = [];
  let [i, j] = [0, 0];
  while (i < old.length && j < now.length) {
    if (old[i] === now[j]) lines.push({ kind: "same", line: now[j++] }), (i += 1);
    else if (longest[(i + 1) * width + j] >= longest[i * width + j + 1]) lines.push({ kind: "gone", line: old[i++] });
    else lines.push({ kind: "new", line: now[j++] });
  }
  return [...lines, ...marked("gone", old.slice(i)), ...marked("new", now.slice(j))];
}
