/** OpenAI's Realtime API, also where other vendors speak it, in today's names and those of the beta. */

import { audioBytes, kept, kindsOf, known, textOf } from "./dialect.js";

/** @typedef {import("./dialect.js").Dialect} Dialect */
/** @typedef {import("./dialect.js").JsonObject} JsonObject */

const SESSION = "session{id audio{output{format{type rate}}} output_audio_format}";
const ITEM = "id type role status content[type text transcript] call_id name arguments output* error* queries[] results*";
const ITEM_FRAME = `item{${ITEM}} previous_item_id response_id`;
const RESPONSE = "id conversation_id";
const DELTA = "item_id delta response_id";
const TRANSCRIPT = "item_id delta transcript phrases[words[offset_milliseconds duration_milliseconds] locale]";
const DONE = `response{${RESPONSE} status status_details{reason error{type code}} output[${ITEM}]}`;
const AUDIO = "response.output_audio.delta";

/** Items of calls of tools: of the app's functions, and of those that the vendor calls itself. */
const CALLS = ["function_call", "function_call_output", "mcp_call", "web_search_call", "file_search_call"];

/** Names of the beta, and those of today. */
const RENAMED = new Map([
  ["conversation.item.created", "conversation.item.added"],
  ["response.audio.delta", AUDIO],
  ["response.audio_transcript.delta", "response.output_audio_transcript.delta"],
  ["response.text.delta", "response.output_text.delta"],
  ["response.audio.done", "response.output_audio.done"],
  ["response.audio_transcript.done", "response.output_audio_transcript.done"],
  ["response.text.done", "response.output_text.done"],
]);

const KINDS = new Map([
  ...kindsOf(
    "vendor",
    {
      "session.created": SESSION,
      "session.updated": SESSION,
      "input_audio_buffer.speech_started": "item_id previous_item_id",
      "input_audio_buffer.speech_stopped": "item_id previous_item_id",
      "input_audio_buffer.committed": "item_id previous_item_id",
      "conversation.item.added": ITEM_FRAME,
      "conversation.item.done": ITEM_FRAME,
      "conversation.item.retrieved": ITEM_FRAME,
      "conversation.item.input_audio_transcription.delta": TRANSCRIPT,
      "conversation.item.input_audio_transcription.completed": TRANSCRIPT,
      "conversation.item.input_audio_transcription.failed": TRANSCRIPT,
      "conversation.item.truncated": "item_id audio_end_ms",
      "response.created": `response{${RESPONSE}}`,
      "response.done": DONE,
      "response.output_audio_transcript.delta": DELTA,
      "response.output_text.delta": DELTA,
      [AUDIO]: "item_id response_id",
      "response.audio_timestamp.delta": "item_id text audio_offset_ms audio_duration_ms response_id",
      "response.output_item.done": ITEM_FRAME,
      "input_audio_buffer.dtmf_event_received": "event",
      "session.input_transcript.delta": "delta elapsed_ms",
      "session.output_transcript.delta": "delta elapsed_ms",
      "session.closed": "",
      "output_audio_buffer.started": "response_id",
      "output_audio_buffer.stopped": "response_id",
      "output_audio_buffer.cleared": "response_id",
    },
    `conversation.created conversation.item.deleted conversation.item.input_audio_transcription.segment error
     input_audio_buffer.cleared session.output_audio.delta
     input_audio_buffer.timeout_triggered mcp_list_tools.completed mcp_list_tools.failed mcp_list_tools.in_progress
     rate_limits.updated response.content_part.added response.content_part.done response.function_call_arguments.delta
     response.function_call_arguments.done response.mcp_call.completed response.mcp_call.failed
     response.mcp_call.in_progress response.mcp_call_arguments.delta response.mcp_call_arguments.done
     response.output_audio.done response.output_audio_transcript.done response.output_item.added
     response.output_text.done response.audio_timestamp.done
     response.animation_blendshapes.delta response.animation_blendshapes.done
     response.animation_viseme.delta response.animation_viseme.done session.avatar.connecting
     session.avatar.switch_to_speaking session.avatar.switch_to_idle response.video.delta
     response.web_search_call.searching response.web_search_call.in_progress response.web_search_call.completed
     response.file_search_call.searching response.file_search_call.in_progress response.file_search_call.completed
     response.audio_transcript.annotation.added response.invocation.delta warning
     transcription_session.created transcription_session.updated`,
    "type event_id",
  ),
  ...kindsOf(
    "app",
    {
      "session.update": SESSION,
      "conversation.item.truncate": "item_id audio_end_ms",
      "input_text.delta": "id delta",
      "input_text.done": "id",
    },
    `conversation.item.create conversation.item.delete conversation.item.retrieve input_audio_buffer.append
     input_audio_buffer.clear input_audio_buffer.commit output_audio_buffer.clear response.cancel response.create
     session.avatar.connect session.close session.input_audio_buffer.append input_audio.turn.start
     input_audio.turn.append input_audio.turn.end input_audio.turn.cancel input_audio.clear mcp_approval_response
     transcription_session.update`,
    "type event_id",
  ),
]);

/** @type {Dialect} */
export const OPENAI_REALTIME = {
  name: "openai-realtime",
  reduce(frame, side) {
    const { given, type, named } = known(today(frame), side, KINDS);
    if (named === null) {
      return null;
    }
    const content = kept(named, given);
    if (type === AUDIO) {
      delete content.event_id;
      return { content: { ...content, audio_bytes: audioBytes(given, "delta") }, countsAudio: true };
    }
    if (content.item) {
      content.item = saidItem(content.item);
    }
    if (Array.isArray(content.response?.output)) {
      content.response.output = content.response.output.map(saidItem);
    }
    const sessionId = type === "session.created" ? textOf(content.session?.id) : undefined;
    return { content, sessionId, typed: isTyped(content.item), ends: type === "session.closed" };
  },
};

/**
 * A frame under today's name.
 *
 * @param {import("./dialect.js").RawFrame} frame
 * @returns {import("./dialect.js").RawFrame}
 */
function today(frame) {
  const name = RENAMED.get(/** @type {JsonObject} */ (frame)?.type);
  return name === undefined ? frame : { .../** @type {JsonObject} */ (frame), type: name };
}

/**
 * An item without what no one said and no tool was asked: instructions, and lists of tools.
 *
 * @param {JsonObject} item
 * @returns {JsonObject}
 */
function saidItem(item) {
  const { content, ...rest } = item;
  if (CALLS.includes(item.type)) {
    return rest;
  }
  const said = Object.fromEntries(Object.entries(item).filter(([name]) => ["id", "type", "role", "status"].includes(name)));
  const isSaid = item.type === "message" && (item.role === "user" || item.role === "assistant");
  return isSaid && content !== undefined ? { ...said, content } : said;
}

/**
 * Whether an item is a text of the user's side that was not spoken.
 *
 * @param {JsonObject | undefined} item
 * @returns {boolean}
 */
function isTyped(item) {
  const parts = Array.isArray(item?.content) ? item.content : [];
  return item?.role === "user" && parts.some((part) => part?.type === "input_text");
}
