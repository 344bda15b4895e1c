/** The dialects by name: those whose frames cross a socket of a JavaScript program. */

import { AGORA_TEN } from "./agora-ten.js";
import { CONVERSATION_RELAY } from "./conversation-relay.js";
import { DEEPGRAM_AGENT } from "./deepgram-agent.js";
import { ELEVENLABS_AGENTS } from "./elevenlabs-agents.js";
import { GEMINI_LIVE } from "./gemini-live.js";
import { OPENAI_LIVE } from "./openai-live.js";
import { OPENAI_REALTIME } from "./openai-realtime.js";
import { PIPECAT_RTVI } from "./pipecat-rtvi.js";
import { TWILIO_MEDIA_STREAMS } from "./twilio-media-streams.js";

/** @typedef {import("./dialect.js").Dialect} Dialect */

const ALL = [
  AGORA_TEN,
  CONVERSATION_RELAY,
  DEEPGRAM_AGENT,
  ELEVENLABS_AGENTS,
  GEMINI_LIVE,
  OPENAI_LIVE,
  OPENAI_REALTIME,
  PIPECAT_RTVI,
  TWILIO_MEDIA_STREAMS,
];

/** @type {Map<string, Dialect>} */
export const DIALECTS = new Map(ALL.map((dialect) => [dialect.name, dialect]));

/**
 * The dialect of this name. Throws `TypeError`, which lists all names.
 *
 * @param {string | undefined} name
 * @returns {Dialect}
 */
export function dialectNamed(name) {
  const found = name === undefined ? undefined : DIALECTS.get(name);
  if (found === undefined) {
    throw new TypeError(`dialect must be one of ${[...DIALECTS.keys()].join(", ")}`);
  }
  return found;
}
