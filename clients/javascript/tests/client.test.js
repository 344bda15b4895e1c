/** The client against a running service: open, record, acknowledge, refuse, end, read, close. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import {
  BufferFull,
  Client,
  Closed,
  EventRefused,
  RequestRefused,
  SessionEnded,
  SessionErased,
  Superseded,
  Unacknowledged,
  Unreachable,
} from "../source/index.js";
import {
  behindProxy,
  clientFor,
  clientTo,
  nested,
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
import { serve, until } from "./service.js";

const KEY = "0123456789abcdef";

/** A service that lets nobody in without a key. */
let keyed;
function serviceWithKeys() {
  keyed ??= serve("--admin-key", KEY).then((one) => Object.assign(one, { adminKey: KEY }));
  return keyed;
}

// Opening

/** After an open everything that a producer needs to know is there. */
test("a_new_session_begins_at_its_beginning", async (t) => {
  const one = await service();
  const client = clientTo(t, one);
  const id = newId();
  const session = await client.open(id, { producer: "asr", config: { name: "Call" } });
  assert.deepEqual([session.sessionId, session.producer, session.state], [id, "asr", "running"]);
  assert.deepEqual([session.epoch, session.nextSeq, session.nextTurn, session.unacknowledged], [1, 1, 1, 0]);
  assert.match(session.incarnation, /^[0-9a-f]+$/);
  assert.equal(client.transport, "websocket");
  assert.deepEqual((await one.session(id)).config, { name: "Call" });
});

/** What is recorded before the server has answered gets its numbers then, after those of an earlier process. */
test("what_is_recorded_before_the_answer_is_numbered_then", async (t) => {
  const one = await service();
  const id = newId();
  const first = clientTo(t, one);
  await seqs(recordTranscripts(first.session(id), 1, 3));
  await first.close();
  const session = clientTo(t, one).session(id);
  const acks = recordTranscripts(session, 4, 5);
  assert.equal(session.isOpen, false);
  assert.deepEqual(await seqs(acks), [4, 5]);
  assert.equal(await session.end(), 6);
  assert.deepEqual(await stored(one, id), [...transcriptsUpTo(5), [6, null]]);
  assert.equal((await one.journal(id)).find((row) => row.seq === 6).event.last_seq, 5);
});

/** Frames of another stack go next to events, under the same numbers. */
test("frames_of_another_stack_are_recorded", async (t) => {
  const one = await service();
  const id = newId();
  const session = clientTo(t, one).session(id, { dialect: "conversation-relay", producer: "relay" });
  session.recordFrame({ type: "setup", callSid: "CA1" }, { from: "vendor", ts: 1_790_000_000_000 });
  session.recordFrame({ type: "prompt", voicePrompt: "Hello?", last: true }, { from: "vendor" });
  assert.equal(await session.record({ type: "metric", name: "e2e", latency_ms: 5, turn_id: 1 }), 3);
  assert.equal((await one.contents(id))[0].content, "Hello?");
  const bare = clientTo(t, one).session(newId());
  assert.equal((await thrown(bare.recordFrame({ type: "setup" }))).code, "unknown_dialect");
});

/** Each open without an id makes a session of its own. */
test("a_session_without_id_gets_one", async (t) => {
  const one = await service();
  const client = clientTo(t, one);
  const ids = [];
  for (let count = 0; count < 3; count += 1) ids.push((await client.open()).sessionId);
  assert.equal(new Set(ids).size, 3);
  for (const id of ids) assert.equal((await one.session(id)).state, "running");
});

/** Without a buffer a client goes on behind what an earlier one has sent, and so do its turns. */
test("a_process_that_starts_anew_goes_on", async (t) => {
  const one = await service();
  const id = newId();
  const first = clientTo(t, one);
  await seqs(recordTranscripts(await first.open(id), 1, 7));
  await first.close();
  const session = await clientTo(t, one).open(id, { config: { name: "ignored, since it exists" } });
  assert.deepEqual([session.epoch, session.nextSeq, session.nextTurn], [2, 8, 8]);
  await seqs(recordTranscripts(session, 8, 9));
  assert.deepEqual(await stored(one, id), transcriptsUpTo(9));
});

/** A client makes one connection, whatever it opens, and two producers of one session do not mix. */
test("many_sessions_share_one_connection", async (t) => {
  const { one, proxy, client } = await behindProxy(t, { silenceMs: 30_000 });
  const ids = numbers(1, 5).map(newId);
  const sessions = [...ids.map((id) => client.session(id)), client.session(ids[0], { producer: "llm" })];
  const acks = sessions.map((session) => recordTranscripts(session, 1, 20));
  for (const some of acks) assert.deepEqual(await seqs(some), numbers(1, 20));
  assert.equal(proxy.accepted, 1);
  for (const id of ids.slice(1)) assert.deepEqual(await stored(one, id), transcriptsUpTo(20));
  const rows = (await one.journal(ids[0])).filter((row) => row.producer === "llm");
  assert.deepEqual(rows.map((row) => row.seq), numbers(1, 20));
});

/** A session or producer that no server would take is an error before anything is sent. */
test("an_impossible_name_is_said_at_once", async (t) => {
  const client = clientTo(t, await service());
  for (const [id, options] of [["a b", {}], ["x".repeat(129), {}], ["s", { producer: "" }]]) {
    assert.throws(() => client.session(id, options), /characters/);
    assert.match((await thrown(client.open(id, options))).message, /characters/);
  }
});

/** A setting beside the options is an error that says where it goes. */
test("a_misplaced_setting_is_said_at_once", async (t) => {
  const client = clientTo(t, await service());
  for (const options of [{ user_id: "ann" }, { userId: "ann" }, { memory: {} }]) {
    assert.throws(() => client.session(newId(), options), /no option .*; settings of a session go into config/);
    assert.match((await thrown(client.open(newId(), options))).message, /go into config/);
  }
});

/** A client does not supersede itself; after the end the session is not opened again, and can still be read. */
test("a_session_is_open_once", async (t) => {
  const client = clientTo(t, await service());
  const id = newId();
  const session = await client.open(id);
  assert.match((await thrown(client.open(id))).message, /open already/);
  await session.end();
  const ended = await thrown(client.open(id, { producer: "other" }));
  assert.ok(ended instanceof SessionEnded);
  assert.match(ended.message, /has ended.*sessionId of its own/);
  assert.equal((await client.session(id).history()).state, "ended");
});

/** Another part of the program, which is the same producer, finds the session that is open. */
test("an_open_session_is_found", async (t) => {
  const client = clientTo(t, await service());
  const id = newId();
  assert.deepEqual([client.find(id), client.isOpen(id)], [null, false]);
  const session = await client.open(id, { dialect: "vapi" });
  const found = client.find(id);
  assert.deepEqual([found.sessionId, found.dialect, session.timesFound, client.isOpen(id)], [id, "vapi", 1, true]);
  assert.equal(await found.record(transcript(1)), 1);
  assert.equal(session.nextSeq, 2);
});

/** An open that the server does not take throws what the server said, and the next one works. */
test("a_bad_configuration_is_refused", async (t) => {
  const client = clientTo(t, await service());
  const id = newId();
  const refused = await thrown(client.open(id, { config: { no_such_setting: 1 } }));
  assert.deepEqual([refused.constructor, refused.code], [RequestRefused, "invalid_field"]);
  assert.equal((await thrown(client.open(id, { config: { name: nested(40) } }))).code, "too_deep");
  assert.equal((await client.open(id)).epoch, 1);
});

/** Whoever does not want to wait for an open can try again. */
test("an_open_that_is_cancelled_leaves_nothing", async (t) => {
  const { proxy, client } = await behindProxy(t);
  const id = newId();
  proxy.toClient.latencyMs = 300;
  assert.ok((await thrown(client.open(id, { timeoutMs: 100 }))) instanceof Unreachable);
  proxy.toClient.latencyMs = 0;
  await seqs(recordTranscripts(await client.open(id), 1, 2));
});

/** What is no websocket URL is said at once. */
test("an_ingest_url_is_checked", () => {
  for (const url of ["http://127.0.0.1:8765", "127.0.0.1:8765", "ws://"]) {
    assert.throws(() => new Client(url), /ws:\/\//);
  }
});

// Recording

/** `record` fills in seq and time, keeps what it was given as it was, and waits for nothing. */
test("send_only_takes", async (t) => {
  const one = await service();
  const session = await clientTo(t, one).open(newId());
  const event = transcript(3);
  const before = Date.now();
  const [first, second] = [session.record(event), session.record(transcript(4, { ts: 7 }))];
  assert.deepEqual([first.seq, second.seq, first.done, second.done], [1, 2, false, false]);
  assert.deepEqual([session.nextSeq, session.nextTurn, event], [3, 5, transcript(3)]);
  event.text = "changed later";
  assert.deepEqual(await seqs([first, second]), [1, 2]);
  assert.deepEqual([second.done, session.unacknowledged, session.unacknowledgedBytes], [true, 0, 0]);
  const [line, other] = (await one.journal(session.sessionId)).map((row) => row.event);
  assert.ok(line.ts >= before && line.ts <= Date.now());
  assert.deepEqual([line.text, other.ts], ["Line 3.", 7]);
});

/** Whoever awaits an ack gets the seq, and one who gives up takes nothing from the others. */
test("an_ack_can_be_awaited_by_many_and_again", async (t) => {
  const { proxy, client } = await behindProxy(t);
  const session = await client.open(newId());
  proxy.toClient.latencyMs = 300;
  const ack = session.record(transcript(1));
  assert.equal((await thrown(ack.result(10))).code, "timed_out");
  assert.deepEqual(await Promise.all([ack, ack]), [1, 1]);
  assert.equal(await ack, 1);
});

/** An event that the server refuses throws its code, detail and seq; those around it are stored. */
test("a_refused_event_says_why", async (t) => {
  const one = await service();
  const session = await clientTo(t, one).open(newId());
  const acks = [transcript(1), { type: "no.such.type" }, transcript(3)].map((event) => session.record(event));
  const refused = await thrown(acks[1]);
  assert.deepEqual([refused.constructor, refused.code, refused.seq], [EventRefused, "unknown_type", 2]);
  assert.ok(refused.detail);
  assert.deepEqual(await seqs([acks[0], acks[2]]), [1, 3]);
  await session.flush();
  const last = session.record({ type: "asr" });
  await session.flush();
  assert.deepEqual([last.done, session.unacknowledged], [true, 0]);
  assert.deepEqual((await stored(one, session.sessionId)).slice(0, 3), [[1, "Line 1."], [2, null], [3, "Line 3."]]);
});

/** Over the bound in events `record` takes nothing but the end, and says so at once; then all is stored. */
test("a_full_buffer_says_so_at_once", async (t) => {
  const { one, proxy, client } = await behindProxy(t, { maxEvents: 5 });
  const session = await client.open(newId());
  await proxy.down();
  recordTranscripts(session, 1, 5);
  assert.ok((await thrown(session.record(transcript(6)))) instanceof BufferFull);
  assert.deepEqual([session.unacknowledged, session.nextSeq, session.fullness], [5, 6, 1]);
  const end = session.record({ type: "session.end" });
  assert.equal(end.seq, 6);
  await proxy.up();
  assert.equal(await end, 6);
  assert.equal(session.fullness, 0);
  assert.deepEqual(await stored(one, session.sessionId), [...transcriptsUpTo(5), [6, null]]);
});

/** Large events fill the buffer as many do. */
test("the_buffer_is_bounded_in_bytes", async (t) => {
  const { proxy, client } = await behindProxy(t, { maxBytes: 10_000 });
  const session = await client.open(newId());
  await proxy.down();
  const large = { metadata: { x: "y".repeat(4_000) } };
  recordTranscripts(session, 1, 2, large);
  assert.ok((await thrown(session.record(transcript(3, large)))) instanceof BufferFull);
  assert.ok(session.unacknowledgedBytes > 8_000 && session.unacknowledgedBytes < 10_000);
  await proxy.up();
  await session.flush();
});

// The end

/** `end` is the last event, names the one before, and gives its reason; nothing can be recorded after it. */
test("the_end", async (t) => {
  const one = await service();
  const session = await clientTo(t, one).open(newId());
  recordTranscripts(session, 1, 3);
  const ending = session.end({ reason: "hangup" });
  assert.ok((await thrown(session.record(transcript(4)))) instanceof SessionEnded);
  assert.equal(await ending, 4);
  assert.equal(session.state, "ended");
  assert.ok((await thrown(session.end())) instanceof SessionEnded);
  const last = (await one.journal(session.sessionId))[3].event;
  assert.deepEqual([last.type, last.last_seq, last.reason], ["session.end", 3, "hangup"]);
  await until(async () => (await one.session(session.sessionId)).state === "ended");
  assert.equal((await one.session(session.sessionId)).reason, "hangup");
});

/** When the session was ended over REST, what was sent before is stored, and what comes after throws. */
test("a_session_that_others_end_takes_no_more", async (t) => {
  const one = await service();
  const client = clientTo(t, one);
  const [session, other] = [await client.open(newId()), await client.open(newId())];
  await seqs(recordTranscripts(session, 1, 3));
  await one.request("POST", `/v1/sessions/${session.sessionId}/end`, {});
  const late = recordTranscripts(session, 4, 3_000);
  for (const ack of late) assert.ok((await thrown(ack)) instanceof SessionEnded);
  assert.deepEqual([session.state, session.unacknowledged], ["ended", 0]);
  assert.ok((await thrown(session.record(transcript(5)))) instanceof SessionEnded);
  assert.deepEqual(await seqs(recordTranscripts(other, 1, 2)), [1, 2]);
  assert.deepEqual(await stored(one, session.sessionId), transcriptsUpTo(3));
});

/** When the session is erased its producer is told, and it cannot be opened again. */
test("an_erased_session_takes_no_more", async (t) => {
  const one = await service();
  const client = clientTo(t, one);
  const session = await client.open(newId());
  await seqs(recordTranscripts(session, 1, 1));
  await one.request("DELETE", `/v1/sessions/${session.sessionId}`);
  assert.ok((await thrown(session.record(transcript(2)))) instanceof SessionErased);
  assert.ok((await thrown(session.record(transcript(3)))) instanceof SessionErased);
  assert.ok((await thrown(client.open(session.sessionId))) instanceof SessionErased);
});

/** Once superseded, a session throws for all that is and will be recorded, and is never opened again. */
test("another_process_takes_over", async (t) => {
  const one = await service();
  const client = clientTo(t, one);
  const [session, other] = [await client.open(newId()), await client.open(newId())];
  await seqs(recordTranscripts(session, 1, 1));
  assert.equal((await stranger(t, one, session.sessionId)).epoch, 2);
  for (const number of [2, 3]) assert.ok((await thrown(session.record(transcript(number)))) instanceof Superseded);
  assert.ok((await thrown(session.flush())) instanceof Superseded);
  assert.deepEqual(await seqs(recordTranscripts(other, 1, 1)), [1]);
  assert.equal((await stranger(t, one, session.sessionId)).epoch, 3);
  assert.deepEqual(await stored(one, session.sessionId), transcriptsUpTo(1));
});

// Reading

/** History and context show what is on disk, in the way that was asked for. */
test("reading_what_was_acknowledged", async (t) => {
  const session = await clientTo(t, await service()).open(newId(), { config: { llm: { model: "m" } } });
  recordTranscripts(session, 1, 3);
  session.record({ type: "llm.delta", turn_id: 3, text: "Well" });
  await session.flush();
  const { contents } = await session.history();
  assert.deepEqual(contents.map((one) => one.content), ["Line 1.", "Line 2.", "Line 3."]);
  const opened = await session.history({ open: true, fields: "standard", after_turn: 2, limit: 1 });
  assert.deepEqual(opened.contents, [{ role: "assistant", content: "Well" }]);
  const body = await session.context({ style: "anthropic", max_history: 1, enrich: ["timestamps", "users"] });
  assert.deepEqual([body.model, body.messages[0].role, body.messages.length], ["m", "user", 1]);
  assert.equal((await session.context({ policy: "recent", max_messages: 2, data: true })).messages.length, 2);
  const window = await session.context({ policy: "window", max_tokens: 1_000, context_window: 8_000, usage: true });
  assert.deepEqual([window.policy, window.context_window, window.left_out], ["window", 8_000, []]);
  assert.deepEqual((await session.turns()).map((turn) => turn.turn_id), [1, 2, 3]);
  assert.ok((await session.turns({ marks: true })).every((turn) => turn.marks.user_final));
  assert.deepEqual((await session.memory()).summaries, []);
  await session.end();
  await until(async () => (await session.history()).state === "ended");
});

/** An error answer has its code, detail and status. */
test("a_refused_request_says_why", async (t) => {
  const one = await service();
  const session = await clientTo(t, one).open(newId());
  const refused = await thrown(session.context({ enrich: ["no_such_enricher"] }));
  assert.deepEqual([refused.constructor, refused.code, refused.status], [RequestRefused, "invalid_query", 400]);
  await one.request("DELETE", `/v1/sessions/${session.sessionId}`);
  const gone = await thrown(session.history());
  assert.deepEqual([gone.code, gone.status], ["unknown_session", 404]);
});

/** A client without the URL of the REST API records, and cannot read. */
test("reading_needs_a_rest_url", async (t) => {
  const client = clientFor(t, (await service()).url);
  const session = await client.open(newId());
  await seqs(recordTranscripts(session, 1, 1));
  assert.equal((await thrown(session.history())).code, "no_rest_url");
  assert.equal((await thrown(client.search("tea"))).code, "no_rest_url");
  assert.throws(() => client.memories, /no_rest_url/);
});

// Keys

/** The key goes with the websocket and with requests. */
test("a_key_lets_in", async (t) => {
  const one = await serviceWithKeys();
  const session = await clientTo(t, one, { key: KEY }).open(newId());
  await seqs(recordTranscripts(session, 1, 1));
  assert.equal((await session.history()).contents.length, 1);
});

/** A page in a browser has a token of one session, which may be renewed while the call goes on. */
test("a_token_lets_into_its_session", async (t) => {
  const one = await serviceWithKeys();
  const id = newId();
  await one.request("POST", "/v1/sessions", { session_id: id });
  const tokenOf = async (seconds) =>
    (await one.request("POST", `/v1/sessions/${id}/tokens`, { ttl_seconds: seconds })).token;
  const client = clientFor(t, one.url, { key: () => tokenOf(60) });
  const session = await client.open(id);
  assert.deepEqual(await seqs(recordTranscripts(session, 1, 2)), [1, 2]);
  client.setKey(await tokenOf(600));
  assert.deepEqual(await seqs(recordTranscripts(session, 3, 4)), [3, 4]);
  assert.equal(session.epoch, 1);
});

/** A token that has expired is replaced, where the key is a function that gets another one. */
test("an_expired_token_is_replaced", async (t) => {
  const one = await serviceWithKeys();
  const id = newId();
  await one.request("POST", "/v1/sessions", { session_id: id });
  let tokens = 0;
  const key = async () => {
    tokens += 1;
    const body = { ttl_seconds: tokens === 1 ? 1 : 600 };
    return (await one.request("POST", `/v1/sessions/${id}/tokens`, body)).token;
  };
  const session = await clientFor(t, one.url, { key }).open(id);
  assert.deepEqual(await seqs(recordTranscripts(session, 1, 2)), [1, 2]);
  await until(() => tokens > 1 && session.epoch > 1, "another token");
  assert.deepEqual(await seqs(recordTranscripts(session, 3, 4)), [3, 4]);
});

/** A key that cannot be had for now is asked for again, and reads end in time without it. */
test("a_key_that_cannot_be_had_is_asked_for_again", async (t) => {
  const one = await serviceWithKeys();
  let asked = 0;
  const key = () => {
    asked += 1;
    if (asked === 1) throw new Error("the backend is away");
    if (asked === 2) return "<html>\n502";
    return asked < 4 ? KEY : new Promise(() => {});
  };
  const session = clientTo(t, one, { key }).session(newId());
  assert.equal(await session.record(transcript(1)), 1);
  assert.match((await thrown(session.context({ timeoutMs: 100 }))).detail, /timed out after 0\.1 s/);
});

/** Whoever is not let in is told so at once, and from then on. */
test("a_wrong_key_is_no_endless_loop", async (t) => {
  const one = await serviceWithKeys();
  for (const key of [undefined, "wrong"]) {
    const client = clientTo(t, one, { key });
    for (let count = 0; count < 2; count += 1) {
      const refused = await thrown(client.open(newId()));
      assert.deepEqual([refused.constructor, refused.code], [RequestRefused, "unauthorized"]);
    }
    const dropped = await thrown(client.session(newId()).record(transcript(1)));
    assert.equal(dropped.code, "unauthorized");
  }
});

/** A key that may only read is no key for events. */
test("a_key_without_the_scope_is_told", async (t) => {
  const one = await serviceWithKeys();
  const { key } = await one.request("POST", "/v1/keys", { name: "reader", scopes: ["read"] });
  const refused = await thrown(clientTo(t, one, { key }).open(newId()));
  assert.deepEqual([refused.constructor, refused.code], [RequestRefused, "forbidden"]);
});

// Closing

/** Closing waits until everything is on disk. */
test("close_waits_for_what_was_sent", async (t) => {
  const { proxy, client } = await behindProxy(t);
  proxy.toClient.latencyMs = 100;
  const session = client.session(newId());
  const acks = recordTranscripts(session, 1, 10);
  await client.close();
  assert.deepEqual(await seqs(acks), numbers(1, 10));
  assert.ok((await thrown(session.record(transcript(11)))) instanceof Closed);
  assert.ok((await thrown(client.open(newId()))) instanceof Closed);
});

/** After its time a close gives up, and says how much of which session; the acks throw too. */
test("close_says_what_was_not_acknowledged", async (t) => {
  const { proxy, client } = await behindProxy(t);
  const [session, quiet] = [await client.open(newId()), await client.open(newId())];
  await seqs(recordTranscripts(quiet, 1, 1));
  await proxy.down();
  const acks = recordTranscripts(session, 1, 3);
  const told = await thrown(client.close({ timeoutMs: 100 }));
  assert.ok(told instanceof Unacknowledged);
  assert.deepEqual(told.events, { [session.sessionId]: 3 });
  for (const ack of acks) assert.ok((await thrown(ack)) instanceof Closed);
  await client.close();
});

/** With a deadline, a server that stays away is an error, for opens as for acks. */
test("a_client_gives_up_when_told_to", async (t) => {
  const { proxy, client } = await behindProxy(t, { giveUpAfterMs: 200 });
  const session = await client.open(newId());
  await proxy.down();
  assert.ok((await thrown(session.record(transcript(1)))) instanceof Unreachable);
  assert.ok((await thrown(client.open(newId()))) instanceof Unreachable);
  await sleep(0);
  assert.ok((await thrown(session.record(transcript(2)))) instanceof Unreachable);
});
