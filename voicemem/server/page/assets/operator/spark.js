// @ts-check
/** A line of the last values, drawn to its own height; it says nothing that the number above it does not. */
import { s } from "../base/dom.js";

const HEIGHT = 34;
const WIDTH = 240;

/** @param {(number | null)[]} values */
export function spark(values) {
  const known = values.filter((value) => value !== null);
  const top = Math.max(...known, 0) || 1;
  const step = WIDTH / Math.max(values.length - 1, 1);
  const places = values.map((value, at) => (value === null ? null : `${(at * step).toFixed(1)},${(HEIGHT - 3 - (value / top) * (HEIGHT - 6)).toFixed(1)}`));
  const points = places.filter((place) => place !== null).join(" ");
  return s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" }, known.length > 1 ? s("polyline", { class: "spark", points }) : null);
}
