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
    "error configUpdated",
    "type",
  ),
  ...kindsOf("app", { text: "token last preemptible", play: "", end: "" }, "sendDigits language config hints", "type"),
]);

const REPORTS = new Set(["agentSpeaking", "clientSpeaking", "tokensPlayed"]);

/** @type {import("./dialect.js").Dialect} */
export const CONVERSATION_RELAY = {
  name: "conversation-relay",
  reduce(frame, side) {
    const { given, type, named } = known(frame, side, KINDS);
    if (named === null || (type === "info" && !REPORTS.has(given.name))) {
      return null;
    }
    const content = kept(named, given);
    const sessionId = type === "setup" ? (textOf(content.callSid) ?? textOf(content.sessionId)) : undefined;
    return { content, sessionId, ends: type === "end" };
  },
};
