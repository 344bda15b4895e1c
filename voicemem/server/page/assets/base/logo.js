// @ts-check
/** The mark of the page: what was heard, a cut, and what was not heard. */
import { s } from "./dom.js";

export function logo() {
  return s(
    "svg",
    { viewBox: "0 0 22 18", "aria-hidden": "true" },
    s("rect", { class: "ca", x: 1, y: 2, width: 8, height: 6, rx: 1.5 }),
    s("rect", { class: "ag", x: 6, y: 10, width: 7, height: 6, rx: 1.5 }),
    s("line", { class: "cutmark", x1: 14, x2: 14, y1: 1, y2: 17 }),
    s("rect", { class: "un", x: 15, y: 10, width: 6, height: 6 }),
  );
}

/** What SVG of the page fills with, once a document: a pattern is named by its id. */
export function patterns() {
  const line = s("line", { class: "hl", x1: 0, y1: 0, x2: 0, y2: 4 });
  const hatch = s("pattern", { id: "hatch", width: 4, height: 4, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, line);
  return s("svg", { class: "patterns", "aria-hidden": "true", width: 0, height: 0 }, s("defs", null, hatch));
}
