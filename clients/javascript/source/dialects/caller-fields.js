/** Which fields of frames say who calls: frames carry them to the service, which keeps none (docs/privacy.md). */

import { isObject } from "./fields.js";

/** @typedef {import("./dialect.js").Dialect} Dialect */
/** @typedef {import("./dialect.js").JsonObject} JsonObject */
/** @typedef {import("./dialect.js").RawFrame} RawFrame */

/** The field in which a frame carries them, by their paths. */
export const CALLER = "~caller";
const OF_SESSION = "session/metadata session/metadata/user_id session/safety_identifier";
const PATHS = new Map(
  Object.entries({
    "conversation-relay": "from to forwardedFrom customParameters customParameters/user_id direction",
    "deepgram-agent": "metadata metadata/user_id metadata/from metadata/caller_id",
    "elevenlabs-agents": `
      dynamic_variables custom_llm_extra_body user_id dynamic_variables/system__caller_id
      dynamic_variables/system__called_number
    `,
    "openai-live": OF_SESSION,
    "openai-realtime": OF_SESSION,
    "pipecat-rtvi": "data/user_id",
    "twilio-media-streams": `
      from to caller start user_id start/customParameters/user_id start/custom_parameters/user_id start/from
      start/customParameters/from start/customParameters/caller start/custom_parameters/from start/to
      start/customParameters/to start/custom_parameters/to direction start/direction start/customParameters/direction
    `,
  }).map(([name, paths]) => [name, paths.trim().split(/\s+/)]),
);

/**
 * What of a frame says who calls; null where nothing does.
 *
 * @param {Dialect} dialect
 * @param {RawFrame} frame
 * @returns {JsonObject | null}
 */
export function callerIn(dialect, frame) {
  const paths = PATHS.get(dialect.name);
  if (paths === undefined || !isObject(frame)) {
    return null;
  }
  const said = paths.map((path) => [path, path.split("/").reduce(inside, frame)]);
  const picked = said.filter(([, value]) => value !== undefined && value !== null);
  return picked.length === 0 ? null : Object.fromEntries(picked);
}

/**
 * @param {any} value
 * @param {string} name
 * @returns {any}
 */
function inside(value, name) {
  return isObject(value) && Object.hasOwn(value, name) ? value[name] : undefined;
}
