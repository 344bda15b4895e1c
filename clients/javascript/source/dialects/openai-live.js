/** OpenAI's Live API. Audio is left out: fragments of text have times. */

import { kept, kindsOf, known, textOf } from "./dialect.js";

/** @typedef {import("./dialect.js").JsonObject} JsonObject */

const FRAGMENT = "delta start_ms end_ms";
const ITEM = "item{type id role status call_id name arguments output* content[type text]}";
const KINDS = new Map([
  ...kindsOf(
    "vendor",
    {
      "session.resumed": "",
      "session.started": "session{id}",
      "session.input_transcript.delta": FRAGMENT,
      "session.output_transcript.delta": FRAGMENT,
      "session.delegation.created": "delegation{id target}",
      "response.event": `event{type ${ITEM}}`,
      "transport.dtmf.received": "event",
      "session.closed": "reason",
    },
    `session.updated session.paused session.input_audio.muted session.input_audio.unmuted session.output_audio.delta
     session.output_audio.fixture.playing session.output_audio.fixture.played session.instructions.appended
     session.thinking.appended session.commentary.appended decision.event decision.item.created decision.item.deleted
     session.usage.updated error info transport.dtmf.sent transport.ringing transport.answered transport.failed`,
    "type event_id",
  ),
  ...kindsOf(
    "app",
    { "session.commentary.append": "content delegation_id", "response.item.create": ITEM },
    `session.start session.update session.input_audio.mute session.input_audio.unmute
     session.output_audio.fixture.play session.instructions.append session.thinking.append decision.create
     decision.item.create decision.item.delete response.create session.close`,
    "type event_id",
  ),
  ...kindsOf(null, {}, "session.input_audio.append transport.dtmf.send"),
]);

/** @type {import("./dialect.js").Dialect} */
export const OPENAI_LIVE = {
  name: "openai-live",
  reduce(frame, side) {
    const { given, type, named } = known(frame, side, KINDS);
    if (named === null) {
      return null;
    }
    const content = kept(named, given);
    if (!saysSomething(type, content)) {
      return null;
    }
    const sessionId = type === "session.started" ? textOf(content.session?.id) : undefined;
    const typed = type === "response.item.create" && kindOf(content.item) === "message";
    return { content, sessionId, ends: type === "session.closed", typed };
  },
};

/**
 * Whether there is anything in a frame that is worth a row; of an item only that is left.
 *
 * @param {string} type
 * @param {JsonObject} content
 * @returns {boolean}
 */
function saysSomething(type, content) {
  switch (type) {
    case "session.input_transcript.delta":
    case "session.output_transcript.delta":
      return content.delta !== "";
    case "session.commentary.append":
      return Boolean(content.delegation_id);
    case "response.item.create":
      return keepAppItem(content);
    case "response.event":
      return keepCall(content.event ?? {});
    default:
      return true;
  }
}

/**
 * @param {JsonObject} content
 * @returns {boolean} whether its item is what a user wrote, or what a function of the app's answered
 */
function keepAppItem(content) {
  const { item } = content;
  if (kindOf(item) === "message" && item?.role === "user") {
    content.item = only(item, ["id", "type", "role", "content"]);
    return (item.content ?? []).some((/** @type {JsonObject} */ part) => part.type === "input_text" && part.text);
  }
  if (kindOf(item) === "function_call_output" && item.call_id) {
    content.item = only(item, ["type", "call_id", "output"]);
    return true;
  }
  return false;
}

/**
 * @param {JsonObject} event
 * @returns {boolean} whether its item is what a function of the app's was asked
 */
function keepCall(event) {
  const { item } = event;
  const isCalled = event.type === "response.output_item.done" && kindOf(item) === "function_call";
  if (!isCalled || !item.call_id || !item.name) {
    return false;
  }
  event.item = only(item, ["type", "call_id", "name", "arguments"]);
  return true;
}

/**
 * @param {JsonObject | null | undefined} item
 * @returns {string | undefined}
 */
function kindOf(item) {
  return item ? (textOf(item.type) ?? "message") : undefined;
}

/**
 * @param {JsonObject} item
 * @param {string[]} names
 * @returns {JsonObject}
 */
function only(item, names) {
  return Object.fromEntries(Object.entries(item).filter(([name]) => names.includes(name)));
}
