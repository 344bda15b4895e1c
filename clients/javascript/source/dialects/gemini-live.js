/** Gemini's Live API, in the names of the wire; those of Google's Python SDK are changed to them. */

import {
  audioBytes,
  fields,
  isObject,
  kept,
  MalformedFrame,
  requireObject,
  textOf,
  UnknownFrame,
  words,
} from "./dialect.js";

/** @typedef {import("./dialect.js").JsonObject} JsonObject */

const USUAL_RATE = 24_000;
const VENDOR = words(`serverContent toolCall toolCallCancellation setupComplete goAway sessionResumptionUpdate
  usageMetadata voiceActivity voiceActivityDetectionSignal`);
const APP = words("setup clientContent realtimeInput toolResponse contextUpdate");
const OFFSETS = "startOffset endOffset";
const HEARD = `{text languageCode speakerLabel ${OFFSETS} finished words[${OFFSETS}]}`;
const SAID = fields(`serverContent{inputTranscription${HEARD} interimInputTranscription${HEARD}
    outputTranscription{text finished words[word ${OFFSETS}]} interactionStatus
    modelTurn{parts[text thought inlineData{mimeType data}]} generationComplete interrupted turnComplete}
  toolCall{functionCalls[name id args*]} setupComplete{sessionId} clientContent{turns[role parts[text]] turnComplete}
  toolCallCancellation{ids[]}
  voiceActivity{voiceActivityType} voiceActivityDetectionSignal{vadSignalType}
  realtimeInput{text activityStart* activityEnd*} toolResponse{functionResponses[name id response*]} audio_bytes rate`);
const TRANSCRIPTIONS = ["inputTranscription", "interimInputTranscription", "outputTranscription"];
const FLAGS = ["generationComplete", "interrupted", "turnComplete"];
/** What a tool is called with and answers, whose names are the app's. */
const FREE = ["args", "response"];
/** A text with which apps have the model speak, where Gemini wants a turn of the user's; so does an empty one. */
const PROMPT = ".";
/** Turns of a history that are kept, the newest. */
const MAX_GIVEN = 64;
/** How deep a message has names of its own. */
const DEPTH = 8;

/** @type {import("./dialect.js").Dialect} */
export const GEMINI_LIVE = {
  name: "gemini-live",
  reduce(frame, side) {
    const sent = /** @type {JsonObject} */ (inCamelCase(requireObject(frame), DEPTH));
    if (senderOf(sent) !== side) {
      throw new MalformedFrame("The other side sends messages of this kind.");
    }
    const message = kept(SAID, sent);
    const given = givenText(message);
    /** @type {JsonObject} */
    const content = {
      ...countedAudio(message),
      ...serverContent(message.serverContent ?? {}),
      ...(message.toolCall?.functionCalls?.length ? { toolCall: message.toolCall } : {}),
      ...(message.toolCallCancellation?.ids?.length ? { toolCallCancellation: message.toolCallCancellation } : {}),
      ...(message.toolResponse?.functionResponses?.length ? { toolResponse: message.toolResponse } : {}),
      ...activity(message),
      ...given,
      ...("setupComplete" in message ? { setupComplete: message.setupComplete } : {}),
    };
    const names = Object.keys(content);
    if (names.length === 0) {
      return null;
    }
    const sessionId = textOf(message.setupComplete?.sessionId);
    return { content, sessionId, typed: isTyped(given), countsAudio: names.join(" ") === "audio_bytes rate" };
  },
};

/**
 * A message in the names of the wire, without what is null.
 *
 * @param {any} value
 * @param {number} depth
 * @returns {any}
 */
function inCamelCase(value, depth) {
  if (depth === 0) {
    return value;
  }
  if (Array.isArray(value)) {
    return value.map((one) => inCamelCase(one, depth - 1));
  }
  if (!isObject(value)) {
    return value;
  }
  const entries = Object.entries(value).filter(([, one]) => one !== null);
  return Object.fromEntries(
    entries.map(([key, one]) => [
      key === "audio_bytes" ? key : key.replace(/_([a-z])/g, (_, letter) => letter.toUpperCase()),
      FREE.includes(key) ? one : inCamelCase(one, depth - 1),
    ]),
  );
}

/**
 * Who sends a message.
 *
 * @param {JsonObject} given
 * @returns {import("./dialect.js").Side}
 */
function senderOf(given) {
  const names = Object.keys(given);
  const isVendor = names.some((name) => VENDOR.includes(name) || name === "audio_bytes");
  const isApp = names.some((name) => APP.includes(name));
  if (isVendor && isApp) {
    throw new MalformedFrame("A message is either Gemini's or the app's.");
  }
  if (!isVendor && !isApp) {
    if (names.length > 0) {
      throw new UnknownFrame(names[0]);
    }
    throw new MalformedFrame("A message of this dialect has content.");
  }
  return isVendor ? "vendor" : "app";
}

/**
 * Signals that the user begins to speak or stops.
 *
 * @param {JsonObject} message
 * @returns {JsonObject}
 */
function activity(message) {
  const named = ["voiceActivity", "voiceActivityDetectionSignal"].filter((name) => Object.keys(message[name] ?? {}).length);
  const given = message.realtimeInput ?? {};
  const own = ["activityStart", "activityEnd"].filter((name) => name in given).map((name) => [name, {}]);
  return {
    ...Object.fromEntries(named.map((name) => [name, message[name]])),
    ...(own.length ? { realtimeInput: Object.fromEntries(own) } : {}),
  };
}

/**
 * How much audio there is in a message, if any, and its samples a second.
 *
 * @param {JsonObject} message
 * @returns {JsonObject}
 */
function countedAudio(message) {
  let count = "audio_bytes" in message ? audioBytes(message, "audio_bytes") : 0;
  let rate = message.rate ?? USUAL_RATE;
  for (const { inlineData } of message.serverContent?.modelTurn?.parts ?? []) {
    const mimeType = textOf(inlineData?.mimeType) ?? "audio/";
    if (textOf(inlineData?.data) && mimeType.startsWith("audio/")) {
      count += audioBytes(inlineData, "data");
      const found = /rate=(\d{1,9})(?!\d)/.exec(mimeType);
      rate = (found && Number(found[1])) || rate;
    }
  }
  return count > 0 ? { audio_bytes: count, rate } : {};
}

/**
 * What the model and the recogniser say, without audio, thoughts and what is empty.
 *
 * @param {JsonObject} said
 * @returns {JsonObject}
 */
function serverContent(said) {
  /** @type {JsonObject} */
  const content = {};
  for (const name of TRANSCRIPTIONS) {
    const given = Object.entries(said[name] ?? {}).filter(([, value]) => value);
    if (given.length > 0) {
      content[name] = Object.fromEntries(given);
    }
  }
  const isSaid = (/** @type {JsonObject} */ part) => textOf(part.text) && part.thought !== true;
  const parts = (said.modelTurn?.parts ?? []).filter(isSaid);
  if (parts.length > 0) {
    content.modelTurn = { parts: parts.map((/** @type {JsonObject} */ part) => ({ text: part.text })) };
  }
  for (const name of FLAGS) {
    if (said[name]) {
      content[name] = said[name];
    }
  }
  if (content.turnComplete && said.interactionStatus === "IN_PROGRESS") {
    content.interactionStatus = said.interactionStatus;
  }
  return Object.keys(content).length > 0 ? { serverContent: content } : {};
}

/**
 * The user's words as the app sends them; of turns that it adds as the model's only that there are any.
 *
 * A turn that is complete without any words only has the model speak.
 *
 * @param {JsonObject} message
 * @returns {JsonObject}
 */
function givenText(message) {
  const text = textOf(message.realtimeInput?.text);
  if (text) {
    return { realtimeInput: { text } };
  }
  const turns = [];
  for (const { role, parts } of (message.clientContent?.turns ?? []).slice(-MAX_GIVEN)) {
    const texts = (parts ?? []).map((/** @type {JsonObject} */ part) => textOf(part.text));
    const said = texts.filter(Boolean).join("\n");
    if (typeof role === "string" && role !== "user") {
      turns.push({ role });
    } else if (said) {
      turns.push({ parts: [{ text: said }] });
    }
  }
  if (turns.length === 0 && message.clientContent?.turnComplete) {
    turns.push({ parts: [{ text: PROMPT }] });
  }
  return turns.length > 0 ? { clientContent: { turns } } : {};
}

/**
 * Whether any text that the app gives is more than a prompt.
 *
 * @param {JsonObject} given
 * @returns {boolean}
 */
function isTyped({ realtimeInput, clientContent }) {
  const turns = realtimeInput ? [{ parts: [realtimeInput] }] : (clientContent?.turns ?? []);
  return turns.some((/** @type {JsonObject} */ { parts }) => !["", PROMPT].includes(parts?.[0].text.trim()));
}
