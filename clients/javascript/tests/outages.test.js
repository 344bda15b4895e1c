/** What a client warns of in an outage, and how it comes back. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { behindProxy, clientFor, newId, recordTranscripts, seqs, service } from "./clients.js";
import { proxyOf } from "./network.js";
import { answering } from "./scripted-server.js";
import { until } from "./service.js";

/** The first failure is reported with what to check, each other reason too, and the websocket's return. */
test("each_new_reason_is_logged_once", async (t) => {
  const warnings = [];
  const said = (text) => until(() => warnings.some((one) => one.includes(text)), text);
  const proxy = await proxyOf(t, (await service()).ingest);
  await proxy.down();
  const client = clientFor(t, proxy.url, { warn: (sentence) => warnings.push(sentence) });
  const opening = client.open(newId());
  await said("connection refused. Check that `voicemem serve`");
  proxy.toClient.limitBytes = 1;
  await proxy.up();
  await said("the connection was closed before the answer was complete. Check");
  proxy.toClient.limitBytes = null;
  await opening;
  await said("the websocket is back after");
  assert.equal(new Set(warnings).size, warnings.length);
  assert.ok(warnings.every((one) => one.startsWith(`${proxy.url}/v1/ingest: `)));
});

/** A network that cuts an attempt and lets the next through forbids no websockets: events stay off HTTP. */
test("an_attempt_that_is_cut_is_no_reason_for_http", async (t) => {
  const warnings = [];
  const { proxy, client } = await behindProxy(t, { warn: (sentence) => warnings.push(sentence) });
  Object.assign(proxy.toClient, { limitBytes: 1, limitOnce: true });
  await client.open(newId());
  assert.equal(client.transport, "websocket");
  assert.deepEqual(warnings.filter((one) => one.includes("over HTTP")), []);
});

/** It says why the websocket cannot be used, then that HTTP is, once something has gone that way. */
test("the_log_says_when_events_go_over_http", async (t) => {
  const warnings = [];
  const { restUrl } = await service();
  const blocked = await answering(t, 403, "<h1>Forbidden</h1>");
  const client = clientFor(t, `ws://127.0.0.1:${blocked}`, { restUrl, warn: (sentence) => warnings.push(sentence) });
  await seqs(recordTranscripts(await client.open(newId()), 1, 2));
  assert.equal(warnings.length, 2);
  assert.ok(warnings[0].startsWith(`ws://127.0.0.1:${blocked}/v1/ingest: HTTP status 403: `));
  assert.equal(warnings[1], `${restUrl}: events go over HTTP until the websocket is back`);
});

/** A request that gets no answer does not keep the websocket waiting that works again. */
test("the_websocket_is_back_while_a_request_hangs", async (t) => {
  const one = await service();
  const [websocket, http] = [await proxyOf(t, one.ingest), await proxyOf(t, one.rest)];
  const client = clientFor(t, websocket.url, { restUrl: http.restUrl, fallbackAfter: 1, requestTimeoutMs: 60_000 });
  const session = await client.open(newId());
  await seqs(recordTranscripts(session, 1, 1));
  http.toClient.swallow = true;
  await websocket.down();
  const acks = recordTranscripts(session, 2, 3);
  await until(() => http.accepted > 0, "a request");
  await websocket.up();
  assert.deepEqual(await seqs(acks), [2, 3]);
  assert.equal(client.transport, "websocket");
});
