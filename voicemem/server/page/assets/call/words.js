// @ts-check
/** What of a message is shown how, and the words for it. Nothing here touches the page. */

import { about, milliseconds } from "../base/times.js";

/** @typedef {{role: string, content: string, turn_id: number, timestamp: number, metadata?: Record<string, any>}} Message */
/** @typedef {{heard: string, ahead: string, unheard: string, apart: boolean}} Parts */

const EVIDENCE = {
  aligned: "heard up to here by word times or a count of characters",
  estimated: "heard up to about here (an estimate)",
  unmatched: "heard as reported; the generated text begins differently",
};
/** What turns have where nobody said why. */
const UNSTATED = "start_of_speech";
const CAUSES = {
  vad: "voice activity",
  turn_detected: "voice activity",
  user_speech: "the caller spoke",
  hangup: "the caller hung up",
  hang_up: "the caller hung up",
  api_interrupt: "by request",
  cleared: "the audio was cleared",
};
const SOURCES = {
  greeting: "greeting",
  silence: "said after silence",
  command: "said on command",
  llm_failure: "said because the LLM failed",
  message: "typed",
};
const BEGINNINGS = {
  voice_input: "voice input",
  silence_timeout: "silence",
  api_speak: "command",
  api_think: "request",
};

/** A word of the service's in plain words. */
const plain = (/** @type {string} */ word) => word.replaceAll("_", " ");

/**
 * The texts of a message: heard, generated and not yet played, and generated and never heard.
 * @param {Message} message
 * @returns {Parts}
 */
export function partsOf(message) {
  const { content, role, metadata = {} } = message;
  const { original, heard_so_far: soFar } = metadata;
  if (typeof original === "string" && original !== content) {
    const apart = !original.startsWith(content);
    return { heard: content, ahead: "", unheard: apart ? original : original.slice(content.length), apart };
  }
  if (metadata.open && role === "assistant" && typeof soFar === "string" && content.startsWith(soFar)) {
    return { heard: soFar, ahead: content.slice(soFar.length), unheard: "", apart: false };
  }
  return { heard: content, ahead: "", unheard: "", apart: false };
}

/** Who speaks. @param {Message} message */
export function speaker(message) {
  const { agent, user } = message.metadata ?? {};
  const [name, other] = message.role === "assistant" ? [agent, "agent"] : [user, "caller"];
  return typeof name === "string" && name ? name : other;
}

/** The small words under a message. @param {Message} message @returns {string[]} */
export function notesOf(message) {
  const { metadata = {}, role } = message;
  const notes = [];
  if (SOURCES[metadata.source]) notes.push(SOURCES[metadata.source]);
  if (metadata.interrupted) notes.push(EVIDENCE[metadata.heard] ?? (metadata.heard ? plain(metadata.heard) : "heard as reported by the engine"));
  if (metadata.open && role === "assistant" && typeof metadata.heard_so_far === "string") {
    notes.push("heard so far; the rest has been generated, but not played yet");
  } else if (metadata.open && role === "assistant") notes.push("in progress");
  if (metadata.partial && !metadata.open) notes.push("not final: the call ended before the recogniser finished");
  return notes;
}

/** Why a turn's reply was cut, or null. @param {any} turn */
export function causeOf(turn) {
  const cause = turn?.end?.metadata?.caused_by;
  return cause && cause !== UNSTATED ? (CAUSES[cause] ?? plain(cause)) : null;
}

/** After how long the reply of a turn began. @param {any} turn */
export const afterOf = (turn) => (turn.reply_after_by === "estimate" ? about(turn.reply_after_ms) : milliseconds(turn.reply_after_ms));

/** That something did not interrupt, and when the reply went on. @param {any} turn @param {(ms: number) => string} at */
export function falseAlarms(turn, at) {
  const count = turn?.false_alarms ?? 0;
  if (count < 1) return null;
  const resumed = turn.marks?.resumed;
  const when = Number.isFinite(resumed) ? ` at ${at(resumed)}` : "";
  return `${count === 1 ? "a false alarm" : `${count} false alarms`}: the reply continued${when}`;
}

/** Why a turn began. @param {any} turn */
export const beganBy = (turn) => BEGINNINGS[turn?.start?.type] ?? plain(turn?.start?.type ?? "–");

/** How a turn ended. @param {any} turn */
export function endedBy(turn) {
  if (!turn?.end) return "in progress";
  const { type, metadata = {} } = turn.end;
  const cause = causeOf(turn) ?? metadata.details;
  return cause ? `${plain(type)}: ${plain(String(cause))}` : plain(type);
}

/** The state of a call. @param {{state?: string, reason?: string | null}} session */
export function stateOf(session) {
  if (session.state === "running") return "live";
  const isPlain = !session.reason || session.reason === session.state;
  return isPlain ? (session.state ?? "") : `${session.state}: ${plain(session.reason ?? "")}`;
}
