// @ts-check
/** The figures of a call's head, from what the page has of the call. Pure; they agree with /stats. */
import { pictureOf, toolsOf } from "./marks.js";

/**
 * @param {Map<number, any>} turns
 * @param {import("./words.js").Message[]} messages
 */
export function figuresOf(turns, messages) {
  const finished = messages.filter((message) => !message.metadata?.open);
  const picture = pictureOf(turns, messages);
  const rows = [...turns.values()];
  const answered = rows.filter((turn) => Number.isFinite(turn.reply_after_ms));
  answered.sort((one, other) => one.reply_after_ms - other.reply_after_ms);
  const tools = rows.flatMap(toolsOf);
  return {
    picture,
    length: picture.to - picture.from,
    turns: new Set(messages.map((message) => message.turn_id)).size,
    messages: finished.length,
    interruptions: finished.filter((message) => message.metadata?.interrupted).length,
    falseAlarms: rows.reduce((sum, turn) => sum + (turn.false_alarms ?? 0), 0),
    unheard: unheardCharacters(finished),
    usual: answered[Math.ceil(answered.length / 2) - 1] ?? null, // the turn of the median
    slowest: answered.at(-1) ?? null,
    tools: tools.length,
    answered: tools.filter((tool) => tool.ended !== null && tool.ended !== undefined).length,
  };
}

/** The characters that the LLM generated and that were not heard. */
function unheardCharacters(/** @type {import("./words.js").Message[]} */ messages) {
  const cut = messages.filter(({ role, metadata = {} }) => role === "assistant" && metadata.interrupted);
  return cut.reduce((sum, { content, metadata }) => sum + Math.max(0, (metadata?.original ?? content).length - content.length), 0);
}
