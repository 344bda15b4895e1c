/** Events over HTTP, where the websocket cannot be reached: the same acks, the same order, and back again. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { EventRefused, RequestRefused, SessionEnded, SessionErased, Superseded, Unreachable } from "../source/index.js";
import {
  clientFor,
  newId,
  numbers,
  recordTranscripts,
  seqs,
  service,
  stored,
  stranger,
  thrown,
  transcript,
  transcriptsUpTo,
} from "./clients.js";
import { proxyOf } from "./network.js";
import { answering } from "./scripted-server.js";
import { serve, until } from "./service.js";

const KEY = "0123456789abcdef";

/** A client whose two ways to the service are proxies. */
async function networkOf(t, one, options = {}) {
  const websocket = await proxyOf(t, one.ingest);
  const http = await proxyOf(t, one.rest);
  const client = clientFor(t, websocket.url, { restUrl: http.restUrl, fallbackAfter: 2, ...options });
  const uses = (transport) => until(() => client.transport === transport, `the way ${transport}`);
  return { one, websocket, http, client, uses };
}

/** Two ways to the service, of which the websocket is closed. */
async function withoutWebsocket(t, options = {}) {
  const network = await networkOf(t, await service(), options);
  await network.websocket.down();
  return network;
}

/** A whole call without a websocket: opened, acknowledged, read, ended. */
test("a_call_over_http", async (t) => {
  const { one, client } = await withoutWebsocket(t);
  const session = await client.open(newId(), { config: { name: "Call" } });
  assert.deepEqual([client.transport, session.epoch, session.incarnation, session.nextSeq], ["http", null, null, 1]);
  assert.deepEqual(await seqs(recordTranscripts(session, 1, 2000)), numbers(1, 2000));
  assert.deepEqual((await session.history({ limit: 1 })).contents.map((message) => message.content), ["Line 2000."]);
  assert.equal(await session.end({ reason: "hangup" }), 2001);
  assert.ok((await thrown(session.record(transcript(1)))) instanceof SessionEnded);
  assert.deepEqual(await stored(one, session.sessionId), [...transcriptsUpTo(2000), [2001, null]]);
  await until(async () => (await one.session(session.sessionId)).state === "ended");
  const shown = await one.session(session.sessionId);
  assert.deepEqual([shown.config, shown.reason], [{ name: "Call" }, "hangup"]);
});

/** Over HTTP too a new process goes on behind what is stored, whatever configuration it would have given. */
test("a_session_that_exists_is_gone_on_with", async (t) => {
  const { one, client } = await withoutWebsocket(t);
  const id = newId();
  await one.request("POST", "/v1/sessions", { session_id: id, name: "Other" });
  const events = numbers(1, 7).map((seq) => ({ seq, ...transcript(seq) }));
  await one.request("POST", `/v1/sessions/${id}/events`, events);
  const session = client.session(id, { config: { name: "Call" } });
  const acks = recordTranscripts(session, 8, 9);
  await session.ready();
  assert.deepEqual([session.nextSeq, session.nextTurn], [10, 10]);
  assert.deepEqual(await seqs(acks), [8, 9]);
  assert.deepEqual(await stored(one, id), transcriptsUpTo(9));
});

/** Once the websocket can be reached it is used, and nothing is stored twice or out of order. */
test("the_websocket_takes_over_again", async (t) => {
  const { one, websocket, client, uses } = await withoutWebsocket(t);
  const session = await client.open(newId());
  const acks = recordTranscripts(session, 1, 50);
  await acks[0];
  await websocket.up();
  for (const number of numbers(51, 150)) {
    acks.push(session.record(transcript(number)));
    await sleep(5);
  }
  assert.deepEqual(await seqs(acks), numbers(1, 150));
  await uses("websocket");
  assert.deepEqual(await seqs(recordTranscripts(session, 151, 152)), [151, 152]);
  assert.equal(session.epoch, 1);
  assert.deepEqual(await stored(one, session.sessionId), transcriptsUpTo(152));
});

/** A call whose websocket comes and goes is stored once and in order. */
test("there_and_back_in_the_middle_of_a_call", async (t) => {
  const { one, websocket, client } = await networkOf(t, await service());
  const session = await client.open(newId());
  const acks = [];
  for (const number of numbers(1, 300)) {
    acks.push(session.record(transcript(number)));
    await sleep(5);
    if (number % 100 === 20) await websocket.down();
    if (number % 100 === 80) await websocket.up();
  }
  assert.deepEqual(await seqs(acks), numbers(1, 300));
  assert.deepEqual(await stored(one, session.sessionId), transcriptsUpTo(300));
});

/** An answer that is not voicemem's is reason enough to use HTTP at once. */
test("a_middle_box_that_forbids_websockets", async (t) => {
  const blocked = await answering(t, 403, "<h1>Forbidden</h1>");
  const client = clientFor(t, `ws://127.0.0.1:${blocked}`, { restUrl: (await service()).restUrl });
  assert.deepEqual(await seqs(recordTranscripts(await client.open(newId()), 1, 2)), [1, 2]);
  assert.equal(client.transport, "http");
});

// What HTTP answers

/** An event that is refused throws, and those around it are stored. */
test("refused_events_say_why", async (t) => {
  const { client } = await withoutWebsocket(t);
  const session = await client.open(newId());
  const acks = [transcript(1), { type: "no.such.type" }, transcript(3)].map((event) => session.record(event));
  const refused = await thrown(acks[1]);
  assert.deepEqual([refused.constructor, refused.code, refused.seq], [EventRefused, "unknown_type", 2]);
  assert.deepEqual(await seqs([acks[0], acks[2]]), [1, 3]);
});

/** Frames of another stack go over HTTP next to events. */
test("frames_go_over_http_next_to_events", async (t) => {
  const { one, client } = await withoutWebsocket(t);
  const session = await client.open(newId(), { dialect: "conversation-relay" });
  session.recordFrame({ type: "setup", callSid: "CA1" }, { from: "vendor" });
  session.record({ type: "message", role: "user", text: "Typed.", source: "message" });
  assert.equal(await session.recordFrame({ type: "prompt", voicePrompt: "Hello?", last: true }, { from: "vendor" }), 3);
  const contents = await one.contents(session.sessionId);
  assert.deepEqual(contents.map((message) => message.content), ["Typed.", "Hello?"]);
});

/** What was sent before the end is stored, what comes after throws. */
test("a_session_that_others_end", async (t) => {
  const { one, client } = await withoutWebsocket(t);
  const session = await client.open(newId());
  await seqs(recordTranscripts(session, 1, 1));
  await one.request("POST", `/v1/sessions/${session.sessionId}/end`, {});
  for (const ack of recordTranscripts(session, 2, 3)) assert.ok((await thrown(ack)) instanceof SessionEnded);
  assert.equal(session.state, "ended");
  assert.deepEqual(await stored(one, session.sessionId), transcriptsUpTo(1));
});

/** A session that is erased takes nothing more, and is not made again. */
test("a_session_that_is_erased", async (t) => {
  const { one, client } = await withoutWebsocket(t);
  const session = await client.open(newId());
  await seqs(recordTranscripts(session, 1, 1));
  await one.request("DELETE", `/v1/sessions/${session.sessionId}`);
  assert.ok((await thrown(session.record(transcript(2)))) instanceof SessionErased);
  assert.ok((await thrown(client.open(session.sessionId))) instanceof SessionErased);
});

/** An open that the server does not take throws what it said. */
test("a_bad_configuration_is_refused", async (t) => {
  const { client } = await withoutWebsocket(t);
  const refused = await thrown(client.open(newId(), { config: { no_such_setting: 1 } }));
  assert.deepEqual([refused.constructor, refused.code, refused.status], [RequestRefused, "invalid_field", 400]);
});

let keyed;
function serviceWithKeys() {
  keyed ??= serve("--admin-key", KEY).then((one) => Object.assign(one, { adminKey: KEY }));
  return keyed;
}

/** Over HTTP too, who is not let in is told so. */
test("a_wrong_key_is_no_endless_loop", async (t) => {
  const { websocket, client } = await networkOf(t, await serviceWithKeys());
  await websocket.down();
  const refused = await thrown(client.open(newId()));
  assert.deepEqual([refused.constructor, refused.code, refused.status], [RequestRefused, "unauthorized", 401]);
});

/** A client whose key is taken away fails, with everything that waits. */
test("a_key_may_be_revoked_in_the_middle", async (t) => {
  const one = await serviceWithKeys();
  const { key, id } = await one.request("POST", "/v1/keys", { name: "test", scopes: ["ingest"] });
  const { websocket, client } = await networkOf(t, one, { key });
  await websocket.down();
  const session = await client.open(newId());
  assert.equal(session.nextTurn, 1);
  await seqs(recordTranscripts(session, 1, 1));
  await one.request("DELETE", `/v1/keys/${id}`);
  const refused = await thrown(session.record(transcript(2)));
  assert.deepEqual([refused.constructor, refused.code], [RequestRefused, "unauthorized"]);
  assert.ok((await thrown(client.open(newId()))) instanceof RequestRefused);
});

/** A body whose answer is lost is posted again, and its events are stored once. */
test("answers_that_are_lost", async (t) => {
  const { one, http, client } = await withoutWebsocket(t, { requestTimeoutMs: 300 });
  const session = await client.open(newId());
  http.toClient.swallow = true;
  const acks = recordTranscripts(session, 1, 20);
  await until(async () => (await stored(one, session.sessionId)).length === 20, "what was posted");
  http.toClient.swallow = false;
  assert.deepEqual(await seqs(acks), numbers(1, 20));
  assert.deepEqual(await stored(one, session.sessionId), transcriptsUpTo(20));
});

/** While neither way is open events are kept; they go by the first that opens. */
test("nothing_can_be_reached", async (t) => {
  const { one, http, client } = await withoutWebsocket(t);
  const session = await client.open(newId());
  await http.down();
  const acks = recordTranscripts(session, 1, 10);
  await sleep(100);
  assert.equal(acks[0].done, false);
  await http.up();
  assert.deepEqual(await seqs(acks), numbers(1, 10));
  assert.deepEqual(await stored(one, session.sessionId), transcriptsUpTo(10));
});

/** With a deadline, a client that reaches the server on no way fails. */
test("giving_up", async (t) => {
  const { http, client } = await withoutWebsocket(t, { giveUpAfterMs: 300 });
  const session = await client.open(newId());
  await seqs(recordTranscripts(session, 1, 1));
  await http.down();
  assert.ok((await thrown(session.record(transcript(2)))) instanceof Unreachable);
});

/** A history whose connection breaks is asked for again; one that is refused is not. */
test("reading_is_tried_again", async (t) => {
  const { http, client } = await networkOf(t, await service());
  const session = await client.open(newId());
  await seqs(recordTranscripts(session, 1, 1));
  http.toClient.limitBytes = 10;
  http.toClient.limitOnce = true;
  assert.equal((await session.history()).contents.length, 1);
  assert.equal(http.toClient.limitBytes, null);
  await http.down();
  assert.ok((await thrown(session.history())) instanceof Unreachable);
});

// Epochs

/** A session that was opened by websocket is fenced over HTTP too: who is superseded is told. */
test("a_stranger_is_noticed_over_http", async (t) => {
  const { one, websocket, client, uses } = await networkOf(t, await service());
  const session = await client.open(newId());
  await seqs(recordTranscripts(session, 1, 1));
  await websocket.down();
  assert.deepEqual(await seqs(recordTranscripts(session, 2, 2)), [2]);
  await uses("http");
  await stranger(t, one, session.sessionId);
  assert.ok((await thrown(session.record(transcript(3)))) instanceof Superseded);
  await websocket.up();
  await uses("websocket");
  assert.equal((await stranger(t, one, session.sessionId)).epoch, 3);
  assert.deepEqual(await stored(one, session.sessionId), transcriptsUpTo(2));
});

/** An open whose answer was lost may have raised the epoch; over HTTP the client then does not insist on its own. */
test("a_client_does_not_supersede_itself", async (t) => {
  const { one, websocket, client } = await networkOf(t, await service(), { connectTimeoutMs: 500 });
  const session = await client.open(newId());
  await seqs(recordTranscripts(session, 1, 1));
  websocket.toClient.limitBytes = 240; // the handshake's answer comes through, no more
  websocket.cut();
  await until(() => epochIsAbove(one, session.sessionId, 1), "another epoch");
  await websocket.down();
  assert.deepEqual(await seqs(recordTranscripts(session, 2, 3)), [2, 3]);
  assert.equal(client.transport, "http");
  assert.deepEqual(await stored(one, session.sessionId), transcriptsUpTo(3));
});

/** Whether the producer's epoch is another one: an event that is there is no duplicate any more, but superseded. */
async function epochIsAbove(one, id, epoch) {
  const body = JSON.stringify([{ seq: 1, ...transcript(1) }]);
  const response = await fetch(`${one.restUrl}/v1/sessions/${id}/events?epoch=${epoch}`, { method: "POST", body });
  return (await response.json()).errors.some((error) => error.code === "superseded");
}
