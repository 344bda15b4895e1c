/**
 * Which fields of a frame are kept, written as a text: the allow-list of a dialect.
 *
 * `name` keeps a text, number or boolean; `name{…}` an object, `name[…]` a list of objects, `name[]` a list of texts or
 * numbers, each with the fields that are named in it; `name*` keeps any JSON. What is not named is left out at all
 * levels.
 */

/** Not a frame of the dialect. */
export class MalformedFrame extends Error {}

/** @typedef {{[name: string]: any}} JsonObject */
/** @typedef {{kind: "plain"} | {kind: "any"} | {kind: "object" | "list", fields: Fields | null}} Kind */
/** @typedef {Map<string, Kind>} Fields */

const TOKEN = /([A-Za-z_][A-Za-z0-9_.]*)(\*|\{|\[)?|([}\]])/g;

/**
 * The fields that a text names.
 *
 * @param {string} text
 * @returns {Fields}
 */
export function fields(text) {
  /** @type {Fields} */
  const all = new Map();
  const open = [all];
  for (const [, name, mark, end] of text.matchAll(TOKEN)) {
    if (end) {
      const inner = open.pop();
      if (end === "]" && inner?.size === 0) {
        markPlainList(open[open.length - 1]);
      }
      continue;
    }
    const parent = open[open.length - 1];
    if (mark === "{" || mark === "[") {
      /** @type {Fields} */
      const inner = new Map();
      parent.set(name, { kind: mark === "{" ? "object" : "list", fields: inner });
      open.push(inner);
    } else {
      parent.set(name, { kind: mark === "*" ? "any" : "plain" });
    }
  }
  return all;
}

/** @param {Fields} parent whose newest field is `name[]` */
function markPlainList(parent) {
  const name = [...parent.keys()].pop();
  if (name !== undefined) {
    parent.set(name, { kind: "list", fields: null });
  }
}

/**
 * Only the named fields of an object, in a new one: what is not of its kind is left out, so that the rest is not lost.
 *
 * @param {Fields} named
 * @param {JsonObject} given
 * @returns {JsonObject}
 */
export function kept(named, given) {
  /** @type {JsonObject} */
  const content = {};
  for (const [name, kind] of named) {
    const value = Object.hasOwn(given, name) ? keptValue(kind, given[name]) : undefined;
    if (value !== undefined) {
      content[name] = value;
    }
  }
  return content;
}

/**
 * @param {Kind} kind
 * @param {any} value
 * @returns {any} undefined where the value is of another kind
 */
function keptValue(kind, value) {
  if (value === null || kind.kind === "any") {
    return value;
  }
  if (kind.kind === "plain") {
    return typeof value === "object" ? undefined : value;
  }
  const inner = kind.fields;
  if (kind.kind === "object") {
    return inner !== null && isObject(value) ? kept(inner, value) : undefined;
  }
  if (!Array.isArray(value)) {
    return undefined;
  }
  // Of plain values each keeps its place, since some lists belong together.
  return inner === null
    ? value.map((one) => (typeof one === "object" ? null : one))
    : value.filter(isObject).map((one) => kept(inner, one));
}

/**
 * @param {unknown} value
 * @returns {value is JsonObject}
 */
export function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
