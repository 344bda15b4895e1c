/**
 * For each line of standard input, `{"dialect", "side", "frame"}` or, with the size of a message, `"binary"`, what leaves the process: a line with `content` and
 * what else is known of it, null for a frame that says nothing, or the name of an error.
 */

import { createInterface } from "node:readline";

import { Binary } from "../../source/dialects/dialect.js";
import { dialectNamed } from "../../source/dialects/registry.js";
import { rawFrame } from "../../source/tee/frames.js";

for await (const line of createInterface({ input: process.stdin })) {
  const { dialect, side, frame, binary } = JSON.parse(line);
  const raw = typeof frame === "string" ? rawFrame(frame) : frame;
  let answer;
  try {
    answer = dialectNamed(dialect).reduce(binary === undefined ? raw : new Binary(binary), side);
  } catch (error) {
    answer = error.constructor.name;
  }
  console.log(JSON.stringify(answer));
}
