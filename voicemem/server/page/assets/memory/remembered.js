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
      replace(summaries, listOr(memory?.summaries?.toReversed().map((/** @type {any} */ one, /** @type {number} */ place) => summary(one, place === 0)), "No summaries yet. With the policy “summary”, one is made when the messages outgrow the context."));
      replace(forgotten, listOr(memory?.forgotten?.map(forgot), "Nothing has been forgotten."));
      replace(carried, listOr(memory?.carried?.map(carry), config?.memory_from ? "Nothing has been carried over yet." : ["Nothing is carried over, since ", h("code", null, "memory_from"), " is not set."]));
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
  const where = h("a", { href: journal(position) }, `journal, position ${position}`);
  const words = current ? "in use" : isNewest ? "not in use: part of it has been forgotten" : null;
  const tag = words ? h("span", { class: "tag" }, words) : null;
  return h("li", null, h("p", { class: "said", dir: "auto" }, text), h("p", { class: "note" }, tag, tag ? " " : null, said.filter(Boolean).join(" · "), " · ", where));
}

/** The journal's tab of the call that is shown. @param {number} position */
const journal = (position) => `${location.pathname.replace(/\/[^/]*$/, "/journal")}#p${position}`;

/** @param {any} one */
function forgot({ through_turn: through, turn, kept, carried, position }) {
  const all = through !== undefined && through !== null;
  const rest = kept?.length ? `, except ${kept.length} of its messages` : "";
  const whole = all ? `Everything through turn ${through}.` : `Turn ${turn}${rest}.`;
  const also = carried ? " Memories of earlier calls are forgotten too." : null;
  return h("li", null, whole, also, h("span", { class: "note" }, "The words stay in the history and the journal. ", h("a", { href: journal(position) }, `Journal, position ${position}`)));
}

/** @param {any} one */
function carry({ session_id: session, text }) {
  return h("li", null, h("p", { class: "said", dir: "auto" }, text), h("p", { class: "note" }, "from ", link(`/calls/${encodeURIComponent(session)}`, session)));
}
