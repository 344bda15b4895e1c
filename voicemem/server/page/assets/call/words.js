// @ts-check
/** What of a message is shown how, and the words for it. Nothing here touches the page. */

/** @typedef {{role: string, content: string, turn_id: number, timestamp: number, metadata?: Record<string, any>}} Message */
/** @typedef {{heard: string, ahead: string, unheard: string, apart: boolean}} Parts */

const EVIDENCE = {
  aligned: "heard by the words’ times or a count of characters",
  estimated: "heard up to about here, an estimate",
  unmatched: "heard as the engine said it, which is not how the generated text begins",
};
const CAUSES = {
  start_of_speech: "start of speech",
  user_speech: "the caller spoke",
  turn_detected: "the caller took the turn",
  hangup: "the caller hung up",
};
const SOURCES = {
  greeting: "greeting",
  silence: "said because of silence",
  command: "said by command",
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
  if (message.role === "assistant") return "agent";
  const user = message.metadata?.user;
  return typeof user === "string" && user ? user : "caller";
}

/**
 * The small words under a message.
 * @param {Message} message
 * @param {any} turn its turn, where known
 * @returns {string[]}
 */
export function notesOf(message, turn) {
  const { metadata = {}, role } = message;
  const notes = [];
  if (SOURCES[metadata.source]) notes.push(SOURCES[metadata.source]);
  if (metadata.interrupted) notes.push(evidenceOf(metadata.heard, turn?.end?.metadata?.caused_by));
  if (metadata.open && role === "assistant" && typeof metadata.heard_so_far === "string") {
    notes.push("heard so far; the rest is generated, not yet played");
  } else if (metadata.open && role === "assistant") notes.push("in progress");
  if (metadata.partial && !metadata.open) notes.push("not final: the call ended before the recogniser had finished");
  return notes;
}

/** How it is known what was heard, and why it was cut. @param {string | undefined} heard @param {string} [cause] */
export function evidenceOf(heard, cause) {
  const known = heard === undefined ? "heard as the engine said" : (EVIDENCE[heard] ?? plain(heard));
  return cause ? `${known}; ${CAUSES[cause] ?? plain(cause)}` : known;
}

/** That something did not interrupt, and when the reply went on. @param {any} turn @param {(ms: number) => string} at */
export function falseAlarms(turn, at) {
  const count = turn?.false_alarms ?? 0;
  if (count < 1) return null;
  const resumed = turn.marks?.resumed;
  const when = Number.isFinite(resumed) ? ` at ${at(resumed)}` : "";
  return `${count === 1 ? "a false alarm" : `${count} false alarms`}, not an interruption: the reply went on${when}`;
}

/** Why a turn began. @param {any} turn */
export const beganBy = (turn) => BEGINNINGS[turn?.start?.type] ?? plain(turn?.start?.type ?? "–");

/** How a turn ended. @param {any} turn */
export function endedBy(turn) {
  if (!turn?.end) return "goes on";
  const { type, metadata = {} } = turn.end;
  const cause = metadata.caused_by ?? metadata.details;
  return cause ? `${plain(type)}: ${CAUSES[cause] ?? plain(String(cause))}` : plain(type);
}

/** How a call stands. @param {{state?: string, reason?: string | null}} session */
export function stateOf(session) {
  if (session.state === "running") return "live";
  const isPlain = !session.reason || session.reason === session.state;
  return isPlain ? (session.state ?? "") : `${session.state}: ${plain(session.reason ?? "")}`;
}
