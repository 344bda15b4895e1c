// @ts-check
/** A table of deliveries, of which each opens to its attempts and payload. */
import { h, replace } from "../base/dom.js";
import { COLUMNS, deliveryRows } from "./row.js";

/** @param {{may: boolean, changed: () => void, withCall?: boolean}} given */
export function deliveriesTable({ may, changed, withCall = true }) {
  const body = h("tbody");
  const open = new Set();
  let deliveries = /** @type {any[]} */ ([]);
  const toggle = (/** @type {string} */ id) => {
    if (!open.delete(id)) open.add(id);
    draw(deliveries);
    /** @type {HTMLElement | null} */ (body.querySelector(`[aria-controls="attempts-${id}"]`))?.focus();
  };
  const draw = (/** @type {any[]} */ now) => {
    deliveries = now;
    const opened = new Map([...body.querySelectorAll("tr.more-of")].map((row) => [row.id, row]));
    const rows = deliveries.flatMap((one) => deliveryRows(one, open.has(one.id), { may, toggle, changed, withCall }));
    replace(body, ...rows.map((row) => keepPayload(row, opened.get(row.id))));
  };
  const columns = COLUMNS.filter((column) => withCall || column !== "Call");
  const head = columns.map((column) => h("th", { scope: "col", class: column === "Actions" ? "r" : null }, column === "Actions" ? h("span", { class: "sr" }, column) : column));
  const table = h("table", { class: "sent" }, h("caption", { class: "sr" }, "Deliveries, the newest first"), h("thead", null, h("tr", null, ...head)), body);
  return { element: h("div", { class: "wide-table" }, table), draw };
}

/** A payload that was opened stays open. @param {any} row @param {Element | undefined} before */
function keepPayload(row, before) {
  const shown = before?.querySelector(".payload");
  if (shown?.hasChildNodes()) row.querySelector(".payload")?.replaceWith(shown);
  return row;
}
