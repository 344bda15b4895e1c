// @ts-check
/** What the next LLM call gets of each message, as the thin line beside it says. Pure but for `paint`. */
import { h, replace } from "../base/dom.js";

const IN = { kind: "in", words: "goes to the LLM unchanged" };
const SUMMARY = { kind: "sum", words: "in the summary" };
const FORGOTTEN = { kind: "gone", words: "forgotten: left out of every context" };
const OPEN = { kind: "open", words: "still in progress" };
const LATER = { kind: "open", words: "after the chosen turn" };
const REASONS = {
  max_messages: "left out: over the policy’s message limit",
  max_tokens: "left out: over the policy’s token limit",
  blank: "left out: blank",
};

/** What tells messages of a call apart. @param {any} one @returns {string} */
const mark = (one) => `${one.turn_id} ${one.role} ${one.timestamp}`;

/**
 * By key: what becomes of each message.
 * @param {string[]} keys
 * @param {Map<string, import("../call/words.js").Message>} messages
 * @param {any} usage the answer of …/context?usage=true
 */
export function railOf(keys, messages, usage) {
  /** @type {Map<string, string[]>} */
  const reasons = new Map();
  for (const left of usage.left_out) reasons.set(mark(left), [...(reasons.get(mark(left)) ?? []), left.reason]);
  const rail = new Map();
  for (const key of keys) {
    const message = messages.get(key);
    const reason = reasons.get(mark(message))?.shift();
    if (isLater(message, usage.at_turn)) rail.set(key, LATER);
    else rail.set(key, message?.metadata?.open && !reason ? OPEN : railFor(reason));
  }
  return rail;
}

/** Whether a message came after the request that is shown. @param {any} message @param {number | undefined} turn */
function isLater(message, turn) {
  if (turn === undefined || !message) return false;
  return message.turn_id > turn || (message.turn_id === turn && message.role === "assistant");
}

/** @param {string | undefined} reason */
function railFor(reason) {
  if (reason === undefined) return IN;
  if (reason === "summarized") return SUMMARY;
  if (reason === "forgotten") return FORGOTTEN;
  return { kind: "out", words: REASONS[reason] ?? `left out: ${reason.replaceAll("_", " ")}` };
}

/** Give a message's line its look and its words. @param {HTMLElement} line @param {{kind: string, words: string} | undefined} state */
export function paint(line, state) {
  const look = `rail ${state?.kind ?? ""}`;
  if (line.className === look && line.title === (state?.words ?? "")) return;
  line.className = look;
  line.title = state?.words ?? "";
  replace(line, state ? h("span", { class: "sr" }, state.words) : null);
}

/**
 * The lines between messages: by the key of the message that they follow.
 * @param {string[]} keys
 * @param {Map<string, import("../call/words.js").Message>} messages
 * @param {any} usage
 * @param {any} memory the answer of …/memory, where it is known
 * @param {(ms: number) => string} clock
 * @returns {Map<string, string[]>}
 */
export function dividersOf(keys, messages, usage, memory, clock) {
  const dividers = new Map();
  const put = (/** @type {string | undefined} */ key, /** @type {string} */ words) => {
    if (key) dividers.set(key, [...(dividers.get(key) ?? []), words]);
  };
  const rail = railOf(keys, messages, usage);
  const gone = keys.filter((key) => rail.get(key)?.kind === "gone").at(-1);
  if (gone) {
    const ts = memory?.forgotten?.at(-1)?.ts;
    put(gone, `forgotten up to here${Number.isFinite(ts) ? `, ${clock(ts)}` : ""}`);
  }
  const newest = memory?.summaries?.filter((/** @type {any} */ one) => one.current !== false).at(-1);
  const through = usage.summary?.through_turn ?? newest?.through_turn ?? newest?.range?.[1];
  if (through !== undefined && through !== null) {
    const covered = keys.filter((key) => (messages.get(key)?.turn_id ?? Infinity) <= through);
    const count = usage.summary?.messages || newest?.messages || covered.length;
    put(covered.at(-1), `summary of the ${count} messages above${newest?.model ? `, by ${newest.model}` : ""}`);
  }
  return dividers;
}
