/** What agents of Agora and of TEN tell their clients: objects, or texts `MESSAGE_ID|PART|PARTS|BASE64`. */

import { Binary, fields, isObject, kept, known, MalformedFrame, words } from "./dialect.js";

/** @typedef {import("./dialect.js").JsonObject} JsonObject */
/** @typedef {import("./dialect.js").Frame} Frame */

const COMMON = "object message_id send_ts";
const FINISHED = "turn_id e2e_latency_ms metrics{e2e_latency_ms}";
const COLLECTED = fields("data_type role text is_final text_ts");
const PART = fields("part{id index data parts}");
const SILENT = `user.translation message.error message.info message.sal_status message.state message.user
  state.listening state.thinking state.speaking image.upload user.manual_sos.result user.manual_eos.result
  assistant.manual_eos.result`;
/** @type {Map<string, import("./dialect.js").Kind>} */
const KINDS = new Map([
  ...Object.entries({
    "user.transcription": "text turn_id final user_id",
    "assistant.transcription": "text turn_id turn_seq_id turn_status words[word start_ms duration_ms]",
    "message.interrupt": "turn_id start_ms",
    "turn.finished": `event_type ${FINISHED} payload{${FINISHED}}`,
    "message.metrics": "module metric_name latency_ms turn_id",
  }).map(
    ([type, named]) =>
      /** @type {[string, import("./dialect.js").Kind]} */ ([
        type,
        { side: "vendor", named: fields(`${COMMON} ${named}`) },
      ]),
  ),
  ...words(SILENT).map(
    (type) => /** @type {[string, import("./dialect.js").Kind]} */ ([type, { side: "vendor", named: null }]),
  ),
]);

/** @type {import("./dialect.js").Dialect} */
export const AGORA_TEN = {
  name: "agora-ten",
  readsBinary: true,
  reduce(frame, side) {
    if (side === "app") {
      throw new MalformedFrame("The app sends no frames of this dialect.");
    }
    if (isObject(frame) && !(frame instanceof Binary)) {
      return "part" in frame ? { content: kept(PART, frame) } : reduced(frame);
    }
    if (typeof frame !== "string") {
      throw new MalformedFrame("A frame of this dialect is an object, or a text.");
    }
    const { parts, ...part } = partOf(frame);
    return parts === 1 ? reduced(decoded(part.data)) : { content: { part: parts === null ? part : { ...part, parts } } };
  },
};

/**
 * @param {JsonObject} message
 * @returns {Frame | null}
 */
function reduced(message) {
  if ("data_type" in message && "role" in message && !("object" in message)) {
    // what the LLM thinks, and what apps send, is not said
    return message.data_type === "transcribe" ? { content: kept(COLLECTED, message) } : null;
  }
  const { named } = known(message, "vendor", KINDS, "object" in message ? "object" : "event_type");
  return named === null ? null : { content: kept(named, message) };
}

/**
 * The part that a message of the data stream is.
 *
 * @param {string} text
 * @returns {{id: string, index: number, data: string, parts: number | null}}
 */
function partOf(text) {
  const [id, index, parts, data, more] = text.split("|");
  const isPart = data !== undefined && more === undefined && /^\d{1,6}$/.test(index) && /^(\d{1,6}|\?\?\?)$/.test(parts);
  if (!isPart) {
    throw new MalformedFrame("A text of this dialect is ID|PART|PARTS|BASE64.");
  }
  return { id, index: Number(index), data, parts: parts === "???" ? null : Number(parts) };
}

/**
 * The object that a whole message holds.
 *
 * @param {string} data
 * @returns {JsonObject}
 */
function decoded(data) {
  try {
    const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
    const value = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
    if (isObject(value)) {
      return value;
    }
  } catch {
    // it is said below
  }
  throw new MalformedFrame("The parts of a message are not a JSON object.");
}
