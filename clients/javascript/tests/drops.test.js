/** Events that `record` cannot take: it never throws, and the ack, the counts, the callback and the metrics say so. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { EventRefused } from "../source/index.js";
import { behindProxy, clientTo, nested, newId, recordTranscripts, seqs, service, thrown, transcript } from "./clients.js";

/** An event that could be no frame is refused at once and uses up no seq. */
test("what_would_close_the_connection_is_not_taken", async (t) => {
  const client = clientTo(t, await service());
  const values = { metadata: { a: Array.from({ length: 140_000 }, () => 1) } };
  for (const [fields, code] of [
    [{ text: "x".repeat(1024 * 1024) }, "too_big"],
    [values, "too_big"],
    [{ metadata: { a: nested(40) } }, "too_deep"],
  ]) {
    const session = await client.open(newId());
    const refused = await thrown(session.record(transcript(1, fields)));
    assert.deepEqual([refused.constructor, refused.code, refused.seq], [EventRefused, code, null]);
    assert.deepEqual(await seqs(recordTranscripts(session, 1, 1)), [1]);
  }
});

/** What is not JSON, or not for users to send, does not throw, uses up no seq, and its ack says why. */
test("what_is_not_an_event_is_not_taken", async (t) => {
  const client = clientTo(t, await service());
  const loop = {};
  loop.again = loop;
  for (const [fields, code] of [
    [{ text: "\ud800" }, "invalid_json"],
    [{ metadata: { ["\udc00"]: 1 } }, "invalid_json"],
    [{ text: 1n }, "invalid_json"],
    [{ metadata: loop }, "invalid_json"],
    [{ metadata: { toJSON: () => { throw new Error("mine"); } } }, "invalid_json"],
    [{ type: "session.open" }, "unknown_type"],
    [{ type: "auth" }, "unknown_type"],
    [{ seq: 2 }, "seq_conflict"],
  ]) {
    const session = await client.open(newId());
    const ack = session.record(transcript(1, fields));
    assert.deepEqual([ack.done, ack.seq, session.dropped], [true, 0, 1]);
    const refused = await thrown(ack);
    assert.deepEqual([refused.constructor, refused.code, refused.seq], [EventRefused, code, null]);
    assert.deepEqual(await seqs([session.record(transcript(1, { seq: 1, text: '\\ud800 "[{' }))]), [1]);
  }
});

/** Whatever is recorded as an event, `record` returns an ack. */
test("a_mistake_of_the_program_does_not_stop_its_audio", async (t) => {
  const session = await clientTo(t, await service()).open(newId());
  for (const event of [null, undefined, "hello", 1, [{ type: "asr" }]]) {
    assert.equal((await thrown(session.record(event, null))).code, "not_events");
    assert.equal((await thrown(session.recordFrame(event, null))).code, "unknown_dialect");
  }
  assert.equal((await thrown(session.record(new Proxy({}, { get: () => { throw new Error("mine"); } })))).code, "invalid_json");
});

/** Each dropped event is counted by its code and reported to the program; the log has fewer and fewer of them. */
test("what_is_not_taken_is_reported", async (t) => {
  const reports = [];
  const warnings = [];
  const failures = t.mock.method(console, "error", () => {});
  const onDropped = (sessionId, producer, error) => {
    reports.push([sessionId, producer, error.code]);
    throw new Error("mine");
  };
  const client = clientTo(t, await service(), { onDropped, warn: (sentence) => warnings.push(sentence) });
  const session = await client.open(newId());
  const other = await client.open(newId(), { producer: "asr" });
  for (let count = 0; count < 9; count += 1) session.record({ type: "auth" });
  await other.end();
  other.record(transcript(1));
  assert.deepEqual(client.dropped, { unknown_type: 9, session_ended: 1 });
  assert.deepEqual([session.dropped, other.dropped], [9, 1]);
  const nine = Array.from({ length: 9 }, () => [session.sessionId, "main", "unknown_type"]);
  assert.deepEqual(reports, [...nine, [other.sessionId, "asr", "session_ended"]]);
  const numbered = warnings.filter((one) => one.includes("not taken")).map((one) => /number (\d+)/.exec(one)[1]);
  assert.deepEqual(numbered, ["1", "2", "4", "8", "1"]);
  assert.equal(failures.mock.callCount(), 10);
});

/** A call goes on beyond a quota for as long as it lasts: each ack has the error, and the log has few of them. */
test("what_the_server_refuses_is_said_less_and_less", async (t) => {
  const warnings = [];
  const session = await clientTo(t, await service(), { warn: (sentence) => warnings.push(sentence) }).open(newId());
  const acks = Array.from({ length: 9 }, () => session.record(transcript(1, { final: "no" })));
  for (const ack of acks) assert.equal((await thrown(ack)).code, "invalid_field");
  assert.equal(warnings.filter((sentence) => sentence.includes("invalid_field")).length, 4);
});

/** A client shows what it dropped, what is unacknowledged and how it is connected, as Prometheus reads it. */
test("metrics_are_prometheus_text", async (t) => {
  const { proxy, client } = await behindProxy(t);
  const session = await client.open(newId());
  session.record({ type: "auth" });
  assert.equal(
    client.metrics(),
    `# TYPE voicemem_client_dropped_events_total counter
voicemem_client_dropped_events_total{code="unknown_type"} 1
# TYPE voicemem_client_unacknowledged_events gauge
voicemem_client_unacknowledged_events 0
# TYPE voicemem_client_unacknowledged_bytes gauge
voicemem_client_unacknowledged_bytes 0
# TYPE voicemem_client_connected gauge
voicemem_client_connected{transport="http"} 0
voicemem_client_connected{transport="websocket"} 1
`,
  );
  await proxy.down();
  const acks = recordTranscripts(session, 1, 2);
  assert.match(client.metrics(), /^voicemem_client_unacknowledged_events 2$/m);
  assert.ok(client.metrics().includes(`voicemem_client_unacknowledged_bytes ${session.unacknowledgedBytes}\n`));
  await proxy.up();
  await seqs(acks);
});
