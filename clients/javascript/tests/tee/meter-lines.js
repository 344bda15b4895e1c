/**
 * For each line of standard input, a list of crossings `[ts, side, frame]`, what the meter of a phone reports: a line with
 * its reports, each made as soon as one is due at a crossing.
 */

import { createInterface } from "node:readline";

import { Binary } from "../../source/dialects/dialect.js";
import { PhoneMeter } from "../../source/tee/phone.js";

for await (const line of createInterface({ input: process.stdin })) {
  const meter = new PhoneMeter();
  const reports = [];
  for (const [ts, side, frame] of JSON.parse(line)) {
    try {
      meter.take(typeof frame === "number" ? new Binary(frame) : frame, side, ts);
    } catch (error) {
      reports.push(error.constructor.name);
    }
    if ((meter.due(ts) ?? Infinity) <= ts) {
      reports.push(meter.report(ts));
    }
  }
  console.log(JSON.stringify(reports));
}
