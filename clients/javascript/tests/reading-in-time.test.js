/** Reading from servers that are silent, slow or away: it ends in time, and says why. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { Closed, RequestRefused, Unreachable } from "../source/index.js";
import { clientFor, clientTo, newId, recordTranscripts, seqs, service, thrown } from "./clients.js";
import { proxyOf } from "./network.js";
import { listener, sayNothing, trickle } from "./scripted-server.js";
import { LONG_MS, freePorts } from "./service.js";

/** Silence and an answer that trickles in end after the context's own time, every attempt included. */
test("a_context_comes_in_time_or_not_at_all", async (t) => {
  const one = await service();
  for (const [handle, scheme] of [[sayNothing, "http"], [sayNothing, "https"], [trickle, "http"]]) {
    const restUrl = `${scheme}://127.0.0.1:${await listener(t, handle)}`;
    const session = await clientFor(t, one.url, { restUrl, contextTimeoutMs: 300 }).open(newId());
    const error = await thrown(session.context({ style: "openai" }));
    assert.ok(error instanceof Unreachable);
    assert.equal(error.detail, `GET ${restUrl}/v1/sessions/${session.sessionId}/context: timed out after 0.3 s.`);
  }
});

/** All attempts being refused, the error comes at once, with address and reason. */
test("a_refused_read_says_where", async (t) => {
  const [port] = await freePorts(1);
  const restUrl = `http://127.0.0.1:${port}`;
  const session = await clientFor(t, (await service()).url, { restUrl }).open(newId());
  for (const read of [() => session.history(), () => session.turns()]) {
    const error = await thrown(read());
    assert.ok(error instanceof Unreachable);
    assert.ok(error.detail.startsWith(`GET ${restUrl}/v1/sessions/${session.sessionId}/`));
    assert.ok(error.detail.endsWith(": connection refused."));
  }
});

/** Of two attempts the second goes out while the first still waits, and its answer counts. */
test("a_read_that_hangs_is_asked_again_alongside", async (t) => {
  const one = await service();
  const proxy = await proxyOf(t, one.rest);
  const session = await clientFor(t, one.url, { restUrl: proxy.restUrl }).open(newId());
  await seqs(recordTranscripts(session, 1, 1));
  await session.context();
  const [first] = proxy.passing;
  first.swallowing.add("toClient"); // as if the way had died without a word
  assert.equal((await session.context({ timeoutMs: LONG_MS / 10 })).messages.length, 1);
  assert.ok(proxy.accepted > 1);
});

/** After closing, reading throws `Closed`. */
test("a_read_of_a_closed_client_says_so", async (t) => {
  const client = clientTo(t, await service());
  const session = await client.open(newId());
  await session.history();
  await client.close();
  assert.ok((await thrown(session.context())) instanceof Closed);
  assert.ok((await thrown(session.add({ role: "user", content: "Hi." }))) instanceof Closed);
});

/** What is not a name goes to the server, which refuses it. */
test("a_number_in_a_list_is_no_error_of_the_client", async (t) => {
  const session = await clientTo(t, await service()).open(newId());
  const refused = await thrown(session.context({ enrich: [1] }));
  assert.deepEqual([refused.constructor, refused.code], [RequestRefused, "invalid_query"]);
});
