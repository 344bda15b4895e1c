// @ts-check
/** When the parts of a call were, for the timeline over the page and that of its tab. All of it on the events' own times, and pure. */
import { partsOf } from "./words.js";

/** @typedef {import("./words.js").Message} Message */
/** @typedef {{lane: "user" | "agent" | "unheard" | "tool", from: number, to: number, turn: number, name?: string}} Bar */
/** @typedef {{from: number, to: number, bars: Bar[], cuts: {at: number, turn: number}[]}} Picture */

export const SLOW_MS = 1500;
const SPOKEN_MS = 60; // of a caller's character, where only the final text is known
const MOST_SPOKEN_MS = 60_000;
const GENERATED_MS = 55; // of a character that was not heard
const KINDS = [
  ["asr", /^(asr|stt|transcri)/],
  ["llm", /^llm(?!_ttfs)/],
  ["tts", /^(tts|voice)/],
];

/** A time that can be drawn, or null. @returns {number | null} */
const known = (/** @type {any} */ value) => (Number.isFinite(value) ? value : null);

/**
 * The bars of a whole call.
 * @param {Map<number, any>} turns rows of /turns by their number
 * @param {Message[]} messages in their order
 * @returns {Picture}
 */
export function pictureOf(turns, messages) {
  /** @type {Map<number, Message[]>} */
  const byTurn = new Map([...turns.keys()].map((turn) => [turn, []]));
  for (const message of messages) {
    if (!byTurn.has(message.turn_id)) byTurn.set(message.turn_id, []);
    byTurn.get(message.turn_id)?.push(message);
  }
  /** @type {Bar[]} */
  const bars = [];
  const cuts = [];
  for (const [turn, said] of byTurn) {
    const marks = turns.get(turn)?.marks ?? {};
    bars.push(...callerBars(turn, marks, said), ...toolBars(turn, turns.get(turn)));
    for (const reply of agentBars(turn, marks, said)) {
      bars.push(...reply.bars);
      if (reply.cut !== null) cuts.push({ at: reply.cut, turn });
    }
  }
  endBeforeTheNextReply(bars);
  const times = bars.flatMap((bar) => [bar.from, bar.to]);
  const from = times.reduce((least, time) => Math.min(least, time), Infinity);
  const to = times.reduce((most, time) => Math.max(most, time), -Infinity);
  return { from: known(from) ?? 0, to: known(to) ?? 0, bars, cuts };
}

/** @returns {Bar[]} */
function callerBars(/** @type {number} */ turn, /** @type {any} */ marks, /** @type {Message[]} */ said) {
  const users = said.filter((message) => message.role === "user");
  return users.map((message, place) => {
    const from = known(place ? null : marks.user_started) ?? known(message.timestamp) ?? 0;
    const to = Math.max(from, known(place ? null : (marks.user_ended ?? marks.user_final)) ?? from);
    const guess = Math.min(message.content.length * SPOKEN_MS, MOST_SPOKEN_MS);
    return { lane: "user", from: to > from ? from : to - guess, to, turn };
  });
}

function agentBars(/** @type {number} */ turn, /** @type {any} */ marks, /** @type {Message[]} */ said) {
  const replies = said.filter((message) => message.role === "assistant");
  return replies.map((message, place) => {
    const began = known(message.timestamp) ?? 0;
    const first = place === 0 ? (known(marks.heard_first) ?? began) : began;
    const cut = message.metadata?.interrupted ? cutOf(message, marks) : null;
    const last = place === replies.length - 1 ? known(marks.heard_last) : known(replies[place + 1].timestamp);
    const { heard, unheard, apart } = partsOf(message);
    const guess = first + heard.length * GENERATED_MS;
    const isGuess = last === null || (place === replies.length - 1 && marks.estimated?.includes("heard_last"));
    const end = Math.max(first, cut ?? (isGuess ? Math.max(last ?? 0, guess) : last) ?? 0);
    /** @type {Bar[]} */
    const bars = heard || cut === null ? [{ lane: "agent", from: first, to: end, turn }] : [];
    const length = (apart ? 0 : unheard.length) * GENERATED_MS;
    if (length) bars.push({ lane: "unheard", from: end, to: end + length, turn });
    return { bars, cut: cut === null ? null : end };
  });
}

/**
 * When a reply was cut. A call that the service closes is closed by its clock; the marks have that of who sent the reply.
 * @param {Message} message @param {any} marks those of its turn
 */
export function cutOf(message, marks) {
  const [cut, last] = [known(message.metadata?.interrupt_timestamp), known(marks?.heard_last)];
  return cut === null || last === null ? cut : Math.min(cut, Math.max(last, message.timestamp));
}

/** @returns {Bar[]} */
function toolBars(/** @type {number} */ turn, /** @type {any} */ row) {
  return toolsOf(row)
    .filter((tool) => known(tool.started) !== null)
    .map((tool) => ({
      lane: "tool",
      from: tool.started,
      to: Math.max(tool.started, known(tool.ended) ?? tool.started),
      turn,
      name: tool.name,
    }));
}

/** What was not heard is drawn up to the next reply at most. @param {Bar[]} bars */
function endBeforeTheNextReply(bars) {
  const begins = bars.filter((bar) => bar.lane === "agent").map((bar) => bar.from);
  begins.sort((one, other) => one - other);
  for (const bar of bars) {
    if (bar.lane !== "unheard") continue;
    let low = 0;
    let high = begins.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (begins[middle] >= bar.from) high = middle;
      else low = middle + 1;
    }
    if (low < begins.length) bar.to = Math.min(bar.to, begins[low]);
  }
}

/** The tools of a turn: those of its marks. @param {any} turn @returns {any[]} */
export const toolsOf = (turn) => turn?.marks?.tools ?? turn?.tools ?? [];

/**
 * The latencies of a turn by their part: {asr, llm, tts, tool, other}, and `whole`, after which its reply began; null where unknown.
 * @param {any} turn
 */
export function latenciesOf(turn) {
  /** @type {Record<string, number | null>} */
  const found = { asr: null, tool: null, llm: null, tts: null, other: null, whole: null };
  for (const { name, latency } of turn?.metrics?.segmented_latency_ms ?? []) {
    const kind = KINDS.find(([, pattern]) => /** @type {RegExp} */ (pattern).test(name))?.[0] ?? "other";
    found[/** @type {string} */ (kind)] = (found[/** @type {string} */ (kind)] ?? 0) + (known(latency) ?? 0);
  }
  for (const tool of toolsOf(turn)) {
    if (known(tool.started) === null || known(tool.ended) === null) continue;
    found.tool = (found.tool ?? 0) + Math.max(0, tool.ended - tool.started);
  }
  found.whole = known(turn?.reply_after_ms);
  return found;
}

/** The time between two marks, or null. @param {any} from @param {any} to */
export function between(from, to) {
  return known(from) === null || known(to) === null ? null : Math.max(0, to - from);
}
