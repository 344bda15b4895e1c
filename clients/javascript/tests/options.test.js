/** The client's options: delays and addresses. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { Client } from "../source/index.js";
import { Backoff, settled } from "../source/options.js";

/** Delays lie between nothing and a ceiling that doubles up to a bound. */
test("delays_grow_are_bounded_and_jump", () => {
  const backoff = new Backoff({ firstDelayMs: 1000, longestDelayMs: 8000 });
  const delays = [[], [], [], [], [], []];
  for (let round = 0; round < 300; round += 1) {
    backoff.reset();
    for (const column of delays) column.push(backoff.nextMs());
  }
  for (const [index, ceiling] of [1000, 2000, 4000, 8000, 8000, 8000].entries()) {
    const [least, most] = [Math.min(...delays[index]), Math.max(...delays[index])];
    assert.ok(least >= 0 && least < 0.2 * ceiling && most > 0.8 * ceiling && most <= ceiling);
  }
});

/** While a server is away the delays stop growing early, and grow on after that. */
test("a_delay_can_be_bounded_lower", () => {
  const backoff = new Backoff({ firstDelayMs: 1, longestDelayMs: 64 }, () => 1);
  assert.deepEqual([1, 2, 3, 4].map(() => backoff.nextMs(2)), [1, 2, 2, 2]);
  assert.equal(backoff.nextMs(), 16);
});

/** What would make every event or read fail is an error before the first call; so is a name that no option has. */
test("impossible_options_are_refused", () => {
  for (const option of ["maxEvents", "maxBytes", "readAttempts"]) {
    assert.throws(() => settled({ [option]: 0 }), new RegExp(option));
  }
  assert.throws(() => new Client("ws://h", { apiKey: "k" }), /no option apiKey/);
  assert.throws(() => new Client("ws://h", { WebSocket: null }), /no WebSocket/);
});

/** The ingest's URL may be given with its path or without. */
test("the_path_is_added_when_absent", () => {
  const cases = {
    "ws://h:1": "ws://h:1/v1/ingest",
    "ws://h:1/": "ws://h:1/v1/ingest",
    "wss://h/v1/ingest": "wss://h/v1/ingest",
    "wss://h/prefix/v1/ingest": "wss://h/prefix/v1/ingest",
  };
  for (const [given, url] of Object.entries(cases)) assert.equal(new Client(given).ingestUrl, url);
});
