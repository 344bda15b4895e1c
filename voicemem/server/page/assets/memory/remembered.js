// @ts-check
/** What contexts are made from besides messages: summaries, what was forgotten, what earlier calls left. */
import { h, replace } from "../base/dom.js";
import { link } from "../base/routes.js";
import { seconds } from "../base/times.js";

/** @param {HTMLElement} container @param {any} config */
export function rememberedPanels(container, config) {
  const [summaries, forgotten, carried] = [h("div"), h("div"), h("div")];
  container.append(panel("Summaries", summaries), panel("Forgotten", forgotten), panel("From earlier calls", carried));
  return {
    /** @param {any} memory the answer of …/memory */
    draw(memory) {
      replace(summaries, listOr(memory?.summaries?.toReversed().map((/** @type {any} */ one, /** @type {number} */ place) => summary(one, place === 0)), "No summary was made. One is made when the messages grow too long for the context and the policy is a summary."));
      replace(forgotten, listOr(memory?.forgotten?.map(forgot), "Nothing was forgotten."));
      replace(carried, listOr(memory?.carried?.map(carry), config?.memory_from ? "Nothing was carried over yet." : ["Nothing is carried over: ", h("code", null, "memory_from"), " is not set."]));
    },
  };
}

/** @param {string} title @param {...any} children */
export const panel = (title, ...children) => h("section", { class: "panel" }, h("header", null, h("h2", null, title)), ...children);

/** @param {Node[] | undefined} items @param {any} words */
const listOr = (items, words) => (items?.length ? h("ul", { class: "stack" }, ...items) : h("p", { class: "soft" }, words));

/** @param {any} one @param {boolean} isNewest */
function summary({ range, messages, text, model, tokens, position, ts, current }, isNewest) {
  const [from, to] = range ?? [];
  const said = [
    from === undefined ? null : from === to ? `turn ${from}` : `turns ${from} to ${to}`,
    messages ? `${messages} message${messages === 1 ? "" : "s"}` : null,
    model,
    tokens ? `${tokens.input ?? "?"} → ${tokens.output ?? "?"} tokens` : null,
    ts ? seconds(ts) : null,
  ];
  const where = h("a", { href: journal(position) }, `at ${position} of the journal`);
  const words = current ? "shown now" : isNewest ? "not shown: some of it was forgotten since" : null;
  const tag = words ? h("span", { class: "tag" }, words) : null;
  return h("li", null, h("p", { class: "said", dir: "auto" }, text), h("p", { class: "note" }, tag, tag ? " " : null, said.filter(Boolean).join(" · "), " · ", where));
}

/** The journal's tab of the call that is shown. @param {number} position */
const journal = (position) => `${location.pathname.replace(/\/[^/]*$/, "/journal")}#p${position}`;

/** @param {any} one */
function forgot({ through_turn: through, turn, kept, carried, position }) {
  const all = through !== undefined && through !== null;
  const rest = kept?.length ? `, but for ${kept.length} of its messages` : "";
  const whole = all ? `Everything through turn ${through}.` : `Turn ${turn}${rest}.`;
  const also = carried ? " What earlier calls left is forgotten too." : null;
  return h("li", null, whole, also, h("span", { class: "note" }, "Its words stay in the history and in the journal. ", h("a", { href: journal(position) }, `At ${position} of the journal`)));
}

/** @param {any} one */
function carry({ session_id: session, text }) {
  return h("li", null, h("p", { class: "said", dir: "auto" }, text), h("p", { class: "note" }, "from ", link(`/calls/${encodeURIComponent(session)}`, session)));
}
