/**
 * What a dialect is here: what of another stack's frame leaves the process (docs/dialects.md, "What is kept").
 *
 * The service reduces each frame again, by the same tables in Python; tests compare the two.
 */

import { fields, isObject, kept, MalformedFrame } from "./fields.js";

/** @typedef {import("./fields.js").JsonObject} JsonObject */
/** @typedef {import("./fields.js").Fields} Fields */
/** @typedef {"vendor" | "app"} Side */

/**
 * A message as it crossed the connection: the JSON object, a text that is not one, or how many bytes it had.
 *
 * @typedef {JsonObject | string | Binary} RawFrame
 */

/**
 * What is kept of one frame. `sessionId`: the vendor's id of the session, where this frame says it. `ends`: it ends the
 * session. `typed`: it may be a text that the app added for the LLM. `countsAudio`: it only says how much audio there
 * was, in `audio_bytes`.
 *
 * @typedef {object} Frame
 * @property {JsonObject | string} content
 * @property {string} [sessionId]
 * @property {boolean} [ends]
 * @property {boolean} [typed]
 * @property {boolean} [countsAudio]
 */

/**
 * @typedef {object} Dialect
 * @property {string} name
 * @property {boolean} [readsBinary] whether its binary messages hold texts other than JSON
 * @property {(frame: RawFrame, side: Side) => Frame | null} reduce what is kept of a frame; null for what says nothing.
 *   Throws `MalformedFrame`, `UnknownFrame`.
 */

/** A frame of a type that the dialect does not know; the message is the type's name. */
export class UnknownFrame extends Error {}

/** A binary message that is no JSON, by its size. */
export class Binary {
  /** @param {number} bytes */
  constructor(bytes) {
    this.bytes = bytes;
  }
}

/**
 * A type of frames: who sends them (null: either side), and which fields are kept; null for those that say nothing.
 *
 * @typedef {{side: Side | null, named: Fields | null}} Kind
 */

/**
 * The types of one side, or of both: `said` are kept, with these fields and `always`, `silent` are known and left out.
 *
 * @param {Side | null} side
 * @param {{[type: string]: string}} said
 * @param {string} silent
 * @param {string} [always]
 * @returns {[string, Kind][]}
 */
export function kindsOf(side, said, silent, always = "") {
  return [
    ...words(silent).map((type) => /** @type {[string, Kind]} */ ([type, { side, named: null }])),
    ...Object.entries(said).map(
      ([type, text]) => /** @type {[string, Kind]} */ ([type, { side, named: fields(`${always} ${text}`) }]),
    ),
  ];
}

/**
 * The object that a frame is, and its kind. Throws `MalformedFrame`, `UnknownFrame`.
 *
 * @param {RawFrame} frame
 * @param {Side} side
 * @param {Map<string, Kind>} kinds
 * @param {string} [field]
 * @returns {{given: JsonObject, type: string, named: Fields | null}}
 */
export function known(frame, side, kinds, field = "type") {
  const given = requireObject(frame);
  const type = given[field];
  if (typeof type !== "string") {
    throw new MalformedFrame(`A frame of this dialect has the field ${field}.`);
  }
  const kind = kinds.get(type);
  if (kind === undefined) {
    throw new UnknownFrame(type);
  }
  if (kind.side !== null && kind.side !== side) {
    throw new MalformedFrame("The other side sends frames of this type.");
  }
  return { given, type, named: kind.named };
}

/**
 * @param {RawFrame} frame
 * @returns {JsonObject}
 */
export function requireObject(frame) {
  if (!isObject(frame) || frame instanceof Binary) {
    throw new MalformedFrame("A frame of this dialect is a JSON object.");
  }
  return frame;
}

/**
 * How many bytes of audio a frame has in a base64 field, or says that it had. Throws `MalformedFrame`.
 *
 * @param {JsonObject} frame
 * @param {string} field
 * @returns {number}
 */
export function audioBytes(frame, field) {
  if (Number.isSafeInteger(frame.audio_bytes) && frame.audio_bytes >= 0) {
    return frame.audio_bytes;
  }
  const audio = frame[field];
  if (typeof audio !== "string") {
    throw new MalformedFrame("An audio frame has no audio.");
  }
  let length = audio.length;
  while (length > 0 && audio[length - 1] === "=") {
    length -= 1;
  }
  return Math.floor((length * 3) / 4);
}

/**
 * @param {string} text
 * @returns {string[]}
 */
export function words(text) {
  return text.split(/\s+/).filter(Boolean);
}

/**
 * A text, or nothing.
 *
 * @param {unknown} value
 * @returns {string | undefined}
 */
export function textOf(value) {
  return typeof value === "string" && value !== "" ? value : undefined;
}

export { fields, isObject, kept, MalformedFrame };
