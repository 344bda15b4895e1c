// @ts-check
/** A tool call in the conversation, where it ran: what it was asked, what it answered, and how long that took. */
import { h, replace } from "../base/dom.js";
import { length, milliseconds } from "../base/times.js";
import { between } from "../call/marks.js";
import { folded } from "./fold.js";

const LONG = 240; // characters of a request or a result from which it is folded
const SHOWN = 160;

/** An empty place for a tool call. @param {any} tool */
export function toolItem(tool) {
  return h("li", { class: "ran", dataset: { tool: tool.call_id } }, h("span"), h("span", { class: "at" }), h("span", { class: "who-s" }, "tool"), h("div", { class: "said" }), h("div", { class: "lat" }));
}

/** @param {HTMLElement} item @param {any} tool its marks @param {any} known its request and result, where they are known @param {number} start of the call */
export function fillTool(item, tool, known, start) {
  const [, at, , said, lat] = /** @type {HTMLElement[]} */ ([...item.children]);
  const stamp = `${tool.started} ${tool.ended} ${tool.failed} ${start} ${known !== undefined} ${known?.answered}`;
  if (item.dataset.stamp === stamp) return; // what one has opened stays open
  item.dataset.stamp = stamp;
  const took = between(tool.started, tool.ended);
  const answer = known?.answered ? short(written(known.result)) : tool.ended ? null : "no answer yet";
  item.classList.toggle("failed", Boolean(tool.failed));
  at.textContent = length(tool.started - start);
  replace(
    said,
    h("p", { class: "tool-call" }, h("bdi", null, short(`${tool.name}(${known ? argumentsOf(known.arguments) : ""})`))),
    answer ? h("p", { class: "tool-call soft" }, "→ ", h("bdi", null, answer)) : null,
  );
  replace(lat, took === null ? null : milliseconds(took), tool.failed ? h("span", { class: "slow" }, " failed") : null);
}

/** @param {string} text */
const short = (text) => folded(text, LONG, SHOWN);

/** @param {any} value */
export function argumentsOf(value) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return written(value);
  return Object.entries(value)
    .map(([name, given]) => `${name}: ${written(given)}`)
    .join(", ");
}

/** @param {any} value */
const written = (value) => (typeof value === "string" ? value : (JSON.stringify(value) ?? ""));
