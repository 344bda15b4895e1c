// @ts-check
/** The tab of the webhooks of a call: every notice over all endpoints, with its attempts. */
import { get } from "../base/api.js";
import { h, replace } from "../base/dom.js";
import { link } from "../base/routes.js";
import { deliveriesTable } from "../deliveries/table.js";

const AGAIN_MS = 3000;

/** @param {HTMLElement} container @param {{id: string}} given @param {any} shell */
export function show(container, { id }, shell) {
  const place = h("div", null, h("p", { class: "soft" }, "…"));
  container.append(place);
  let shown = "";
  let closed = false;
  const look = async () => {
    if (document.hidden) return;
    const answer = await get(`/v1/sessions/${encodeURIComponent(id)}/deliveries`).catch((problem) => ({ problem }));
    const now = JSON.stringify(answer.deliveries ?? answer.problem.detail);
    if (closed || now === shown || document.querySelector("dialog[open]")) return;
    shown = now;
    if (answer.problem) return replace(place, h("p", { class: "alert", role: "alert" }, answer.problem.detail));
    if (!answer.deliveries.length) return replace(place, nothing());
    table.draw(answer.deliveries);
    if (!table.element.isConnected) replace(place, table.element);
  };
  const table = deliveriesTable({ may: shell.may, changed: look, withCall: false });
  look();
  const timer = setInterval(look, AGAIN_MS);
  return {
    close() {
      closed = true;
      clearInterval(timer);
    },
  };
}

function nothing() {
  return h("div", { class: "panel empty" }, h("h2", null, "No deliveries yet"), h("p", null, "A call’s webhooks are sent when it ends, to every endpoint of the project. ", link("/deliveries", "See the endpoints")));
}
