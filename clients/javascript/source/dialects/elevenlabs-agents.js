/** The websocket of a conversation with an agent of ElevenLabs. */

import { audioBytes, fields, isObject, kept, kindsOf, known, MalformedFrame, textOf } from "./dialect.js";

/** @typedef {import("./dialect.js").JsonObject} JsonObject */

const TIMED = fields("event_id alignment{chars[] char_start_times_ms[] char_durations_ms[]}");
const COUNTED = fields("type audio_bytes event_id words*");
const KINDS = new Map([
  ...kindsOf(
    "vendor",
    {
      conversation_initiation_metadata:
        "conversation_initiation_metadata_event{conversation_id agent_output_audio_format}",
      tentative_user_transcript: "tentative_user_transcription_event{user_transcript event_id}",
      user_transcript: "user_transcription_event{user_transcript event_id}",
      agent_response: "agent_response_event{agent_response event_id response_id}",
      agent_chat_response_part: "text_response_part{text event_id type response_id}",
      audio: "",
      interruption: "interruption_event{event_id}",
      agent_response_correction:
        "agent_response_correction_event{original_agent_response corrected_agent_response event_id}",
      client_tool_call: "client_tool_call{tool_name tool_call_id parameters*}",
      agent_tool_request: "agent_tool_request{tool_name tool_call_id tool_type}",
      agent_tool_response_full_payload:
        "agent_tool_response_full_payload{tool_call_id tool_name full_tool_result*}",
    },
    `agent_reasoning_response_part agent_response_complete agent_response_metadata agent_tool_response agent_typing
     asr_initiation_metadata client_error context_usage dtmf_request error external_agent_connected
     external_agent_disconnected guardrail_triggered internal_tentative_agent_response internal_turn_probability
     mcp_connection_status mcp_tool_call ping rich_content vad_score`,
    "type",
  ),
  ...kindsOf(
    "app",
    {
      client_tool_result: "tool_call_id result*",
      user_message: "text",
      multimodal_message: "text{type text}",
    },
    "contextual_update conversation_initiation_client_data feedback mcp_tool_approval_result pong user_activity",
    "type",
  ),
]);

/** @type {import("./dialect.js").Dialect} */
export const ELEVENLABS_AGENTS = {
  name: "elevenlabs-agents",
  reduce(frame, side) {
    if (isObject(frame) && "user_audio_chunk" in frame && !("type" in frame) && side === "app") {
      return null;
    }
    const { given, type, named } = known(frame, side, KINDS);
    if (named === null) {
      return null;
    }
    if (type === "audio") {
      return countedAudio(given);
    }
    const content = kept(named, given);
    const sessionId = textOf(content.conversation_initiation_metadata_event?.conversation_id);
    return { content, sessionId, typed: type === "user_message" || type === "multimodal_message" };
  },
};

/**
 * A piece of audio as a count, with the times of its characters.
 *
 * @param {JsonObject} given
 * @returns {import("./dialect.js").Frame}
 */
function countedAudio(given) {
  if ("audio_bytes" in given) {
    const { words, ...content } = kept(COUNTED, given);
    const isTimed = Array.isArray(words);
    return { content: isTimed ? { ...content, words } : content, countsAudio: !isTimed };
  }
  const event = given.audio_event;
  if (!isObject(event)) {
    throw new MalformedFrame("A frame of audio has an audio_event.");
  }
  const audio_bytes = audioBytes(event, "audio_base_64");
  const { alignment, ...rest } = kept(TIMED, event);
  if (!isTimed(alignment)) {
    return { content: { type: "audio", audio_bytes, ...rest }, countsAudio: true };
  }
  return { content: { type: "audio", audio_event: { ...rest, audio_bytes, alignment } } };
}

/**
 * Whether there is any character with a place for its times.
 *
 * @param {JsonObject | null | undefined} alignment
 * @returns {boolean}
 */
function isTimed(alignment) {
  const lists = [alignment?.chars, alignment?.char_start_times_ms, alignment?.char_durations_ms];
  if (!lists.every(Array.isArray)) {
    return false;
  }
  const timed = lists[0].slice(0, Math.min(...lists.map((list) => list.length)));
  return timed.some((/** @type {unknown} */ one) => textOf(one) !== undefined);
}
