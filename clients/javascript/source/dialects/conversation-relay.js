/** ConversationRelay of Twilio and Telnyx. */

import { kept, kindsOf, known, textOf } from "./dialect.js";

const KINDS = new Map([
  ...kindsOf(
    "vendor",
    {
      setup: "callSid sessionId",
      prompt: "voicePrompt last",
      interrupt: "utteranceUntilInterrupt durationUntilInterruptMs",
      dtmf: "digit",
      info: "name value",
    },
    "error",
    "type",
  ),
  ...kindsOf("app", { text: "token last", end: "" }, "play sendDigits language", "type"),
]);

/** @type {import("./dialect.js").Dialect} */
export const CONVERSATION_RELAY = {
  name: "conversation-relay",
  reduce(frame, side) {
    const { given, type, named } = known(frame, side, KINDS);
    if (named === null || (type === "info" && given.name !== "agentSpeaking")) {
      return null;
    }
    const content = kept(named, given);
    const sessionId = type === "setup" ? (textOf(content.callSid) ?? textOf(content.sessionId)) : undefined;
    return { content, sessionId, ends: type === "end" };
  },
};
