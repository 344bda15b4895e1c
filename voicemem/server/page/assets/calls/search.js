// @ts-check
/** What the search box finds: a call by its id, and words that were heard or are remembered, each with its call. */
import { post } from "../base/api.js";
import { h } from "../base/dom.js";
import { link } from "../base/routes.js";
import { moment } from "../base/times.js";

const HITS = 20;
/** @type {Record<string, string>} */
const WHO = { user: "Caller", assistant: "Agent" };

/**
 * Look for words; `user` narrows it. @param {string} words @param {string | null} user
 * @returns {Promise<Element>}
 */
export async function searched(words, user) {
  const found = await post("/v1/memories/search", { query: words, limit: HITS, ...(user ? { user_id: user } : {}) });
  const items = found.memories.map(hit);
  const isId = /^[A-Za-z0-9._:-]{1,128}$/.test(words);
  const more = found.next_cursor ? h("p", { class: "note" }, `The best ${HITS} are shown.`) : null;
  return h(
    "section",
    { class: "panel found", "aria-label": "Found" },
    h("h2", { role: "status" }, items.length ? `Said or remembered: “${words}”` : `Nobody said “${words}”`),
    isId ? h("p", { class: "soft" }, "If it is the id of a call: ", link(`/calls/${encodeURIComponent(words)}`, `open ${words}`)) : null,
    items.length ? h("ul", { class: "stack" }, ...items) : null,
    more,
  );
}

/** @param {any} one */
function hit({ kind, text, role, session_id: session, user_id: user, said_at: at }) {
  const who = kind === "message" ? (WHO[role] ?? role) : `Remembered ${kind}`;
  const call = session ? link(`/calls/${encodeURIComponent(session)}`, session) : null;
  return h("li", { class: role === "user" ? "u" : "a" }, h("p", { class: "said", dir: "auto" }, h("span", { class: "who-s" }, who), " ", text), h("p", { class: "note" }, call, user ? ` · ${user}` : null, ` · ${moment(at)}`));
}
