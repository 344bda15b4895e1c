/**
 * For each line of standard input, `{"dialect", "side", "frame"}`, what leaves the process: a line with `content` and
 * what else is known of it, null for a frame that says nothing, or the name of an error.
 */

import { createInterface } from "node:readline";

import { dialectNamed } from "../../source/dialects/registry.js";
import { rawFrame } from "../../source/tee/frames.js";

for await (const line of createInterface({ input: process.stdin })) {
  const { dialect, side, frame } = JSON.parse(line);
  let answer;
  try {
    answer = dialectNamed(dialect).reduce(typeof frame === "string" ? rawFrame(frame) : frame, side);
  } catch (error) {
    answer = error.constructor.name;
  }
  console.log(JSON.stringify(answer));
}
