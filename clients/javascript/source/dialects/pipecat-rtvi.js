/** RTVI messages of Pipecat, 2.2 and 1.x. */

import { fields, kept, kindsOf, known, MalformedFrame, requireObject } from "./dialect.js";

const LABEL = "rtvi-ai";
/** A user's id that telephony made of the caller's number. */
const PHONE_NUMBER = /^(?:sip|tel)?[:_]?\+?[\d\s().-]{7,}(?:@.*)?$/;
const INPUT = "data{text final input_type user_id msg_id timestamp}";
const CALL = "data{tool_call_id function_name arguments* args*}";
const RESULT = "data{tool_call_id function_name result* cancelled}";
const OUTPUT = `data{text output_type aggregated_by segment_id spoken will_be_spoken spoken_status
  spoken_progress{accumulated_text}}`;

const KEYS = "data{button buttons[]}";

const KINDS = new Map([
  ...kindsOf(
    "vendor",
    {
      "user-input": INPUT,
      "user-transcription": INPUT,
      "bot-ready": "",
      "user-started-speaking": "",
      "user-stopped-speaking": "",
      "vad-user-stopped-speaking": "",
      "bot-llm-started": "",
      "bot-llm-stopped": "",
      "bot-output": OUTPUT,
      "bot-transcription": "data{text}",
      "bot-interrupted": "",
      "bot-started-speaking": "",
      "bot-stopped-speaking": "",
      "llm-function-call": CALL,
      "llm-function-call-in-progress": CALL,
      "llm-function-call-stopped": RESULT,
    },
    `bot-llm-text bot-llm-marker bot-tts-text bot-tts-audio bot-tts-started bot-tts-stopped
     user-llm-text stt-raw-text llm-raw-text tts-raw-text
     vad-user-started-speaking user-mute-started user-mute-stopped metrics server-message
     server-response error-response error system-log user-audio-level bot-audio-level ui-command ui-job-group
     llm-function-call-started llm-search-response bot-llm-search-response config config-available
     config-error action-response actions-available storage-item-stored bot-output-progress`,
    "label type",
  ),
  ...kindsOf(
    "app",
    { "llm-function-call-result": RESULT, "send-text": "data{content}", dtmf: KEYS, "dtmf-input": KEYS },
    `client-ready client-message disconnect-bot send-file append-to-context update-config get-config
     describe-config action describe-actions raw-audio raw-audio-batch ui-event ui-snapshot ui-cancel-job-group`,
    "label type",
  ),
]);
const ID = fields("id");

/** @type {import("./dialect.js").Dialect} */
export const PIPECAT_RTVI = {
  name: "pipecat-rtvi",
  reduce(frame, side) {
    if (requireObject(frame).label !== LABEL) {
      throw new MalformedFrame(`A frame of this dialect has the label ${LABEL}.`);
    }
    const { given, type, named } = known(frame, side, KINDS);
    if (named === null) {
      return null;
    }
    const content = kept(named, given);
    if (type === "send-text" && typeof given.id === "string") {
      Object.assign(content, kept(ID, given));
    }
    if (typeof content.data?.user_id === "string" && PHONE_NUMBER.test(content.data.user_id)) {
      delete content.data.user_id;
    }
    return { content, typed: type === "send-text" || content.data?.input_type === "chat" };
  },
};
