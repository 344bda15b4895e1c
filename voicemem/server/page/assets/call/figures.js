// @ts-check
/** The figures of a call's head, from what the page has of the call. Pure; they agree with /stats. */
import { latenciesOf, pictureOf, toolsOf } from "./marks.js";

/**
 * @param {Map<number, any>} turns
 * @param {import("./words.js").Message[]} messages
 */
export function figuresOf(turns, messages) {
  const finished = messages.filter((message) => !message.metadata?.open);
  const picture = pictureOf(turns, messages);
  const rows = [...turns.values()];
  const whole = rows.map((turn) => latenciesOf(turn).whole).filter((value) => value !== null);
  whole.sort((one, other) => /** @type {number} */ (one) - /** @type {number} */ (other));
  const tools = rows.flatMap(toolsOf);
  return {
    picture,
    length: picture.to - picture.from,
    turns: new Set(messages.map((message) => message.turn_id)).size,
    messages: finished.length,
    interruptions: finished.filter((message) => message.metadata?.interrupted).length,
    falseAlarms: rows.reduce((sum, turn) => sum + (turn.false_alarms ?? 0), 0),
    unheard: unheardShare(finished),
    usual: whole.length ? whole[Math.ceil(whole.length / 2) - 1] : null,
    slowest: whole.length ? whole[whole.length - 1] : null,
    tools: tools.length,
    answered: tools.filter((tool) => tool.ended !== null && tool.ended !== undefined).length,
  };
}

/** The part, from 0 to 1, of what the LLM generated that nobody heard; null where it generated nothing. */
function unheardShare(/** @type {import("./words.js").Message[]} */ messages) {
  let generated = 0;
  let heard = 0;
  for (const { role, content, metadata = {} } of messages) {
    if (role !== "assistant" || metadata.source !== "llm") continue;
    generated += (metadata.original ?? content).length;
    heard += content.length;
  }
  return generated ? Math.max(0, generated - heard) / generated : null;
}
