/** Reads exports in lines, of a user and of many calls, and notices when they are cut short. */
import { Unreachable } from "./errors.js";
import { displayUrl } from "./transport/failures.js";
import { queryParams } from "./transport/rest.js";

/**
 * Which calls to export; all without any. Times are Unix ms.
 * @typedef {object} CallFilters
 * @property {"running" | "ended"} [state]
 * @property {string} [user_id]
 * @property {string} [label]
 * @property {number} [started_after]
 * @property {number} [started_before]
 */

/**
 * The lines of an export, the last of which is of the type `end`. Throws `Unreachable` if it does not come.
 * @param {import("./transport/rest.js").RestClient} rest
 * @param {string} path
 * @param {Record<string, any>} query
 * @returns {AsyncGenerator<Record<string, any>, void>}
 */
export async function* readLines(rest, path, query) {
  let unfinished = "";
  for await (const piece of rest.pieces(path, { query: queryParams(query) })) {
    const lines = (unfinished + piece).split("\n");
    unfinished = /** @type {string} */ (lines.pop());
    for (const line of lines) {
      const row = JSON.parse(line);
      yield row;
      if (row.type === "end") return;
    }
  }
  throw new Unreachable(`GET ${displayUrl(rest.address(path))}: the export was cut short.`);
}
