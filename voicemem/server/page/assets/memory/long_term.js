// @ts-check
/** Memories that outlive the call, each with the lines that it comes from. */
import { get } from "../base/api.js";
import { h, replace } from "../base/dom.js";
import { link } from "../base/routes.js";
import { full } from "../base/times.js";
import { panel } from "./remembered.js";

const PAGE = 50;

/** @param {HTMLElement} container @param {string} path of the session */
export function longTermPanel(container, path) {
  const place = h("div", null, h("p", { class: "soft" }, "…"));
  container.append(panel("Long-term memories", place));
  return {
    async refresh() {
      try {
        const { memories, next_cursor: next } = await get(`${path}/memories`, { limit: PAGE, superseded: true });
        replace(place, drawn(memories, next));
      } catch (problem) {
        replace(place, h("p", { class: "soft" }, /** @type {any} */ (problem).detail ?? String(problem)));
      }
    },
  };
}

/** @param {any[]} memories @param {string | null} next */
function drawn(memories, next) {
  if (!memories.length) return h("p", { class: "soft" }, "No memories have been kept of this call.");
  const more = next ? h("p", { class: "note" }, `Showing the newest ${PAGE}.`) : null;
  return [h("ul", { class: "stack" }, ...memories.map(memoryItem)), more];
}

/** @param {any} memory */
function memoryItem(memory) {
  const old = memory.superseded_by;
  const lines = h("div", { class: "evidence" });
  const details = h("details", null, h("summary", null, "Where it comes from"), lines);
  details.addEventListener("toggle", () => details.hasAttribute("open") && !lines.hasChildNodes() && showEvidence(lines, memory));
  const facts = [memory.kind, ...memory.topics, memory.pinned ? "pinned" : null, memory.confidence < 1 ? `confidence ${memory.confidence}` : null, memory.model, full(memory.said_at)];
  const note = h("p", { class: "note" }, facts.filter(Boolean).join(" · "), old ? " · replaced by a newer memory" : null);
  return h("li", null, h("p", { class: "said", dir: "auto" }, old ? h("del", null, memory.text) : memory.text), note, memory.from.length ? details : null);
}

/** @param {HTMLElement} place @param {any} memory */
async function showEvidence(place, memory) {
  replace(place, h("p", { class: "note" }, "…"));
  try {
    const { evidence } = await get(`/v1/memories/${encodeURIComponent(memory.id)}`, { evidence: true });
    const lines = (evidence ?? []).map(line);
    replace(place, lines.length ? h("ul", null, ...lines) : h("p", { class: "note" }, "The messages have been erased or forgotten."));
  } catch (problem) {
    replace(place, h("p", { class: "note" }, /** @type {any} */ (problem).detail ?? String(problem)));
  }
}

/** @param {any} one a message as it was heard */
function line(one) {
  const message = one.message ?? one;
  const session = one.session_id ?? message.session_id;
  const who = message.role === "user" ? "Caller" : "Agent";
  const where = session ? link(`/calls/${encodeURIComponent(session)}`, session) : null;
  return h("li", { class: message.role === "user" ? "u" : "a" }, h("span", { class: "who-s" }, who), " ", h("span", { dir: "auto" }, message.content ?? message.text), " ", h("span", { class: "note" }, where));
}
