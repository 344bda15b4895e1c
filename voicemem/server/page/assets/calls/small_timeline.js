// @ts-check
/** A call as a small picture: the caller above the line, the agent below, what was not heard hatched, cuts as strokes. */
import { s } from "../base/dom.js";

const WIDTH = 170;
const SCALE = WIDTH / 1000; // a timeline comes in parts of a thousand of the call's length
const HEIGHT = 26;
const LEAST = 1; // so that a short word is seen
/** @type {Record<string, [string, number, number]>} class, top and height of a lane */
const LANES = {
  user: ["ca", 3, 9],
  agent: ["ag", 14, 9],
  unheard: ["un", 14, 9],
  tool: ["tk", 24, 2],
};

/**
 * @param {{length_ms: number, lanes: [string, number, number][]} | null | undefined} timeline
 * @param {string} words what it shows, for those who do not see it
 */
export function smallTimeline(timeline, words) {
  const lanes = timeline?.lanes ?? [];
  return s(
    "svg",
    { class: "mini", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": words },
    s("line", { class: "mid", x1: 0, x2: WIDTH, y1: HEIGHT / 2, y2: HEIGHT / 2 }),
    lanes.map(([lane, from, to]) => (lane === "cut" ? cut(from * SCALE) : bar(lane, from * SCALE, to * SCALE))),
  );
}

/** @param {number} at */
const cut = (at) => s("line", { class: "cutmark", x1: at, x2: at, y1: 1, y2: HEIGHT - 2, "vector-effect": "non-scaling-stroke" });

/** @param {string} lane @param {number} from @param {number} to */
function bar(lane, from, to) {
  const known = LANES[lane];
  if (!known) return null;
  const [look, y, height] = known;
  const width = Math.max(LEAST, to - from);
  return s("rect", { class: look, x: Math.min(from, WIDTH - width), y, width, height });
}
