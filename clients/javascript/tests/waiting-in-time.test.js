/** Waiting for acks and for the end, in bounds. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { TimedOut, Unacknowledged } from "../source/index.js";
import { behindProxy, newId, thrown, transcript } from "./clients.js";
import { until } from "./service.js";

/** A wait that takes too long ends as `TimedOut`; the event stays under way. */
test("an_ack_can_be_waited_for_in_bounds", async (t) => {
  const { proxy, client } = await behindProxy(t);
  const session = await client.open(newId());
  await proxy.down();
  const ack = session.record(transcript(1));
  assert.ok((await thrown(ack.result(10))) instanceof TimedOut);
  assert.ok((await thrown(session.flush({ timeoutMs: 10 }))) instanceof TimedOut);
  assert.equal(session._producer.flushes.length, 0);
  await proxy.up();
  assert.equal(await ack, 1);
  await proxy.down();
  assert.ok((await thrown(session.end({ timeoutMs: 10 }))) instanceof TimedOut);
  await proxy.up();
  await session.flush();
  assert.equal(session.state, "ended");
});

/** With megabytes that no socket takes, a close ends after its time. */
test("a_close_does_not_wait_for_a_server_that_reads_nothing", async (t) => {
  const { proxy, client } = await behindProxy(t, { silenceMs: 60_000, maxBytes: 2 ** 25 });
  const session = await client.open(newId());
  proxy.toServer.bytesPerS = 1;
  for (let count = 0; count < 250; count += 1) session.record({ type: "asr", text: "x".repeat(100_000) });
  await until(() => client._reconnector.transport.lookingAgain !== null, "a full socket");
  assert.ok((await thrown(client.close({ timeoutMs: 300 }))) instanceof Unacknowledged);
});
