/** Deepgram's Voice Agent: its binary messages are the agent's audio, those of the app are the user's. */

import { Binary, kept, kindsOf, known, MalformedFrame, textOf } from "./dialect.js";

const KINDS = new Map([
  ...kindsOf(
    "vendor",
    {
      Welcome: "request_id",
      ConversationText: "role content conversational_behavior",
      UserStartedSpeaking: "",
      AgentThinking: "",
      AgentStartedSpeaking: "total_latency tts_latency ttt_latency",
      LatencyReport: "stt_latency ttt_text_latency tts_latency ttt_latency total_latency",
      AgentAudioDone: "",
      SpeechInterrupted: "text_spoken",
      FunctionCallRequest: "functions[id name arguments*]",
    },
    `Error FrustrationDetected FunctionCallCancelled InjectionRefused ListenUpdated PromptUpdated
     SettingsApplied SpeakUpdated ThinkLiveUpdated ThinkUpdated Warning __customFromThinkProvider`,
    "type",
  ),
  ...kindsOf(
    "app",
    {
      Settings: "audio{output{encoding sample_rate bitrate}}",
      InjectUserMessage: "content",
      InjectAgentMessage: "behavior",
    },
    "ForceEndTurn KeepAlive UpdateListen UpdatePrompt UpdateSpeak UpdateThink UpdateThink_Live __customToThinkProvider",
    "type",
  ),
  ...kindsOf(null, { FunctionCallResponse: "name content* id" }, "History", "type"),
]);

/** @type {import("./dialect.js").Dialect} */
export const DEEPGRAM_AGENT = {
  name: "deepgram-agent",
  reduce(frame, side) {
    const counted = frame instanceof Binary ? frame.bytes : countedBefore(frame);
    if (counted !== null) {
      return side === "app" || counted === 0 ? null : { content: { audio_bytes: counted }, countsAudio: true };
    }
    const { given, type, named } = known(frame, side, KINDS);
    if (named === null) {
      return null;
    }
    const content = kept(named, given);
    if (!saysSomething(content)) {
      return null;
    }
    return { content, sessionId: textOf(content.request_id), typed: type === "InjectUserMessage" };
  },
};

/**
 * The size of a binary message that was counted before; null for any other frame.
 *
 * @param {any} frame
 * @returns {number | null}
 */
function countedBefore(frame) {
  const isCount = Number.isSafeInteger(frame?.audio_bytes) && Object.keys(frame).length === 1;
  return isCount && frame.audio_bytes >= 0 ? frame.audio_bytes : null;
}

/**
 * @param {import("./dialect.js").JsonObject} content
 * @returns {boolean}
 */
function saysSomething({ type, role, content, conversational_behavior: behavior, functions }) {
  switch (type) {
    case "ConversationText":
      if (role !== "user" && role !== "assistant") {
        throw new MalformedFrame("A text of a conversation is the user's or the assistant's.");
      }
      return content.trim() !== "" && !(role === "user" && behavior === "backchannel");
    case "InjectUserMessage":
      return content.trim() !== "";
    case "FunctionCallRequest":
      return functions.length > 0;
    default:
      return true;
  }
}
