// @ts-check
/** What the search box finds: calls by how they or their users begin, and words that were heard or are remembered. */
import { get, post } from "../base/api.js";
import { h } from "../base/dom.js";
import { link } from "../base/routes.js";
import { day, moment } from "../base/times.js";
import { finder } from "../conversation/find.js";
import { parameters } from "./filters.js";

const HITS = 20;
const CALLS = 8;
/** @type {Record<string, string>} */
const WHO = { user: "Caller", assistant: "Agent" };

/**
 * Look for words, in calls that all filters leave; with any but that of the user, only calls are shown.
 * @param {string} words @param {URLSearchParams} query @returns {Promise<Element>}
 */
export async function searched(words, query) {
  const { user_id: user, ...others } = parameters(query);
  const isNarrow = Object.entries(others).some(([name, value]) => name !== "fields" && value);
  const asked = { query: words, limit: HITS, ...(user ? { user_id: user } : {}) };
  const [named, found] = await Promise.all([
    get("/v1/sessions", { ...parameters(query), q: words, limit: CALLS }),
    isNarrow ? { memories: [] } : post("/v1/memories/search", asked),
  ]);
  const calls = named.sessions.map((/** @type {any} */ row) => callOf(row, words));
  const items = found.memories.map((/** @type {any} */ one) => hit(one, words));
  const more = found.next_cursor ? h("p", { class: "note" }, `Showing the best ${HITS}.`) : null;
  return h(
    "section",
    { class: "panel found", "aria-label": "Found" },
    h("h2", { role: "status" }, calls.length ? `Calls that match “${words}”` : `No calls match “${words}”`),
    calls.length ? h("ul", { class: "stack" }, ...calls) : null,
    items.length ? h("h2", null, "Heard or remembered") : null,
    items.length ? h("ul", { class: "stack" }, ...items) : null,
    more,
  );
}

/** A call whose id or user begins so, or in which the words were heard: it opens at them. @param {any} row @param {string} words */
function callOf({ session_id: session, user_id: user, started_at: at }, words) {
  return h("li", null, link(`/calls/${encodeURIComponent(session)}?${new URLSearchParams({ find: words })}`, session), h("span", { class: "note" }, user ? `${user} · ` : null, moment(at)));
}

/** What was found leads to its message. @param {any} one @param {string} words */
function hit({ kind, text, role, session_id: session, user_id: user, said_at: at, from }, words) {
  const who = kind === "message" ? (WHO[role] ?? role) : `Remembered ${kind}`;
  const [place] = from ?? [];
  const query = new URLSearchParams({ find: words, ...(place?.turn_ids?.length ? { in: place.turn_ids[0] } : {}) });
  const call = place?.session_id ?? session;
  const turn = kind === "message" && place?.turn_ids?.length ? `turn ${place.turn_ids[0]}` : null;
  const open = (/** @type {any} */ inside) => (call ? link(`/calls/${encodeURIComponent(call)}?${query}`, inside) : inside);
  return h("li", { class: role === "user" ? "u" : "a" }, h("p", { class: "said", dir: "auto" }, h("span", { class: "who-s" }, who), " ", open(h("bdi", null, finder(words)?.mark(text) ?? text))), h("p", { class: "note" }, [call, user, day(at), turn].filter(Boolean).join(" · ")));
}
