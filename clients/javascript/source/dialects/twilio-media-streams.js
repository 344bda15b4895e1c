/** Media streams of Twilio, SignalWire, Telnyx, Plivo and Vonage: how far a phone has played the agent's audio. */

import { isObject, kept, kindsOf, known, textOf } from "./dialect.js";

/** @typedef {import("./dialect.js").JsonObject} JsonObject */

/** @type {{[event: string]: string}} Names of events at Plivo and Vonage, and those of Twilio. */
const SPELLINGS = {
  playAudio: "media",
  checkpoint: "mark",
  playedStream: "mark",
  played: "mark",
  notify: "mark",
  "websocket:notify": "mark",
  clearAudio: "clear",
  clearedAudio: "connected",
  "websocket:cleared": "connected",
  "websocket:connected": "start",
  "websocket:dtmf": "dtmf",
};
const STREAM_IDS = ["streamSid", "stream_id", "streamId"];
const CALL_IDS = ["callSid", "call_control_id", "callId"];
const KINDS = new Map([
  ...kindsOf(
    "vendor",
    { start: "start{callSid}", stop: "", dtmf: "dtmf{digit} sequenceNumber" },
    "connected error",
    "event streamSid",
  ),
  ...kindsOf("app", { playback: "sent_ms at_ms since cuts*" }, "", "event streamSid"),
  ...kindsOf(null, {}, "media mark clear"),
]);

/**
 * A frame with Twilio's names of what the dialect keeps, and of its audio, format and marks.
 *
 * @param {JsonObject} given
 * @returns {JsonObject}
 */
export function asTwilio(given) {
  const named = given.event || given.action;
  const event = typeof named === "string" && Object.hasOwn(SPELLINGS, named) ? SPELLINGS[named] : named;
  const start = isObject(given.start) ? given.start : {};
  /** @type {JsonObject} */
  const frame = { ...given, event };
  const stream = firstText(STREAM_IDS.flatMap((name) => [given[name], start[name]]));
  if (stream !== undefined) {
    frame.streamSid = stream;
  }
  if (event === "start") {
    const call = firstText(CALL_IDS.map((name) => start[name]));
    const mediaFormat = start.mediaFormat || start.media_format || { encoding: given["content-type"] };
    frame.start = { mediaFormat, ...(call === undefined ? {} : { callSid: call }) };
  } else if (event === "dtmf" && "digit" in given) {
    frame.dtmf = { digit: given.digit };
  } else if (event === "mark" && !isObject(given.mark)) {
    frame.mark = { name: given.name || given.payload };
  }
  if (Number.isInteger(given.sequenceNumber)) {
    frame.sequenceNumber = String(given.sequenceNumber);
  }
  return frame;
}

/**
 * @param {unknown[]} values
 * @returns {string | undefined}
 */
function firstText(values) {
  return textOf(values.find(textOf));
}

/** @type {import("./dialect.js").Dialect} */
export const TWILIO_MEDIA_STREAMS = {
  name: "twilio-media-streams",
  reduce(frame, side) {
    const { given, named } = known(isObject(frame) ? asTwilio(frame) : frame, side, KINDS, "event");
    if (named === null) {
      return null;
    }
    const { cuts, ...content } = kept(named, given);
    if (Array.isArray(cuts)) {
      const isNumber = (/** @type {any} */ one) => typeof one === "number";
      content.cuts = cuts.filter(Array.isArray).map((cut) => cut.filter(isNumber));
    }
    return { content, sessionId: textOf(content.start?.callSid) };
  },
};
