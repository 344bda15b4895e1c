/**
 * Events of LiveKit's JavaScript agents as frames of the dialect `livekit-agents`, in the names of LiveKit's Python.
 *
 * A frame is made of named fields alone: instructions, images, identities and errors stay in the process.
 */

/** @typedef {{[name: string]: any}} JsonObject */

/** The events that say something, by the names of `voice.AgentSessionEventTypes`. */
export const EVENTS = /** @type {const} */ ([
  "user_state_changed",
  "user_input_transcribed",
  "conversation_item_added",
  "function_tools_executed",
  "agent_false_interruption",
  "close",
]);

/**
 * What is kept of an event; null for one that says nothing.
 *
 * @param {JsonObject} event
 * @returns {JsonObject | null}
 */
export function frameOf(event) {
  const fields = Object.hasOwn(FIELDS, event.type) ? FIELDS[event.type](event) : null;
  return fields ? { type: event.type, ...fields, created_at: event.createdAt } : null;
}

const SPEECH = ["speaking", "listening"];

/** @type {{[type: string]: (event: JsonObject) => JsonObject | null}} */
const FIELDS = {
  user_state_changed: ({ newState }) => (SPEECH.includes(newState) ? { new_state: newState } : null),
  user_input_transcribed: ({ transcript, isFinal }) => ({ transcript, is_final: isFinal }),
  conversation_item_added({ item }) {
    const isSaid = item.type === "message" && (item.role === "user" || item.role === "assistant");
    return isSaid ? { item: messageOf(item) } : null;
  },
  function_tools_executed: ({ functionCalls, functionCallOutputs }) => ({
    function_calls: functionCalls.map(callOf),
    function_call_outputs: functionCallOutputs.filter(Boolean).map(outputOf),
  }),
  agent_false_interruption: ({ resumed }) => ({ resumed }),
  close: ({ reason }) => ({ reason: `${reason}` }),
};

/** @param {JsonObject} message */
function messageOf({ id, type, role, content, interrupted, metrics, createdAt, textContent }) {
  const isText = content.every((/** @type {unknown} */ part) => typeof part === "string");
  const texts = isText ? [textContent ?? content.join("\n")] : content.map(textOf);
  return {
    id,
    type,
    role,
    content: texts.filter(Boolean),
    interrupted,
    metrics: { started_speaking_at: metrics?.startedSpeakingAt, stopped_speaking_at: metrics?.stoppedSpeakingAt },
    created_at: createdAt,
  };
}

/**
 * A text, or what was heard of audio.
 *
 * @param {any} part
 * @returns {string | undefined}
 */
function textOf(part) {
  if (typeof part === "string") {
    return part;
  }
  return part?.type === "audio_content" ? part.transcript : undefined;
}

/** @param {JsonObject} call */
function callOf({ callId, name, args }) {
  return { call_id: callId, name, arguments: args };
}

/** @param {JsonObject} output */
function outputOf({ callId, output }) {
  return { call_id: callId, output };
}
