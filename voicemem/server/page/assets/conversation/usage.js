// @ts-check
/** What a context takes: a gauge of its parts, and the figures beside it. */
import { h, s } from "../base/dom.js";

/** @type {Record<string, string>} */
const LEFT_OUT = { max_messages: "over the message limit", max_tokens: "over the token limit", summarized: "in the summary" };

/** What the context is made of, in tokens. @param {any} context */
export function gauge(context) {
  const { tokens, system_tokens: system, context_window: window } = context;
  const words = `${system} tokens of system messages and working memory, ${tokens} of messages`;
  const whole = Math.max(1, tokens + system);
  const scale = (window && whole / window > 0.1 ? Math.max(window, whole) : whole) / 100;
  const summary = Math.min(tokens, tokens * summaryShare(context));
  const image = s("svg", { viewBox: "0 0 100 6", preserveAspectRatio: "none", role: "img", "aria-label": words });
  let x = 0;
  for (const [look, part] of /** @type {[string, number][]} */ ([["sys", system], ["sum", summary], ["msg", tokens - summary]])) {
    const width = part / scale;
    image.append(s("rect", { class: `g-${look}`, x: x.toFixed(2), y: 0, width: width.toFixed(2), height: 6 }));
    x += width;
  }
  return h("div", { class: "gauge" }, image);
}

/** About which part of the memory's tokens the summary takes: by its characters. @param {any} context */
function summaryShare(context) {
  if (!context.summary?.through_turn) return 0;
  const texts = context.messages.map((/** @type {any} */ message) => textOf(message));
  const summary = texts.find((/** @type {string} */ text) => text.startsWith("Summary of the first"))?.length ?? 0;
  const others = context.messages.filter((/** @type {any} */ message) => message.role !== "system").map(textOf);
  return summary ? summary / (summary + others.join("").length) : 0;
}

/** @param {any} context */
export function pairs(context) {
  const counts = new Map();
  for (const { reason } of context.left_out) counts.set(reason, (counts.get(reason) ?? 0) + 1);
  const left = [...counts].map(([reason, count]) => `${count.toLocaleString("en")} ${LEFT_OUT[reason] ?? reason.replaceAll("_", " ")}`).join(", ");
  const used = context.context_percentage_total_used;
  const until = context.context_percentage_until_summarization;
  const rows = [
    ["messages", `${context.tokens.toLocaleString("en")} tokens`],
    ["system and working memory", `${context.system_tokens.toLocaleString("en")} tokens`],
    ["left out", left || "nothing"],
  ];
  const isDue = until >= 100 && context.summary?.state !== "current";
  const more = [
    until === null ? null : isDue ? "The next summary is due." : `${until} % until the next summary`,
    used === null ? null : `${used} % of the window of ${context.context_window.toLocaleString("en")} tokens`,
    context.over_budget ? "One message alone is larger than the budget." : null,
  ];
  return [
    h("dl", { class: "pairs" }, ...rows.flatMap(([name, value]) => [h("dt", { class: "soft" }, name), h("dd", null, value)])),
    more.map((words) => (words ? h("p", { class: "note num" }, words) : null)),
  ];
}

/** A message of the request as text; of tool calls, what they ask. @param {any} message @returns {string} */
export function textOf(message) {
  const { content } = message;
  if (typeof content === "string") return content;
  const calls = message.tool_calls?.map((/** @type {any} */ one) => `${one.function?.name}(${one.function?.arguments ?? ""})`);
  if (content === null || content === undefined) return calls?.join(", ") ?? JSON.stringify(message);
  return JSON.stringify(content);
}
