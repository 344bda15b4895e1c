/** Tails, memories and exports, read from a running service. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { RequestRefused, Unreachable } from "../source/index.js";
import { Decoder, TooLong } from "../source/sse.js";
import { clientFor, clientTo, newId, numbers, recordTranscripts, seqs, service, thrown } from "./clients.js";
import { proxyOf } from "./network.js";
import { freePorts } from "./service.js";

/** The tail of a call has each of its events once, also over connections that are lost, and ends with the call. */
test("a_tail_goes_on_after_lost_connections", async (t) => {
  const one = await service();
  const proxy = await proxyOf(t, one.rest);
  const session = await clientFor(t, one.url, { restUrl: proxy.restUrl }).open(newId());
  await seqs(recordTranscripts(session, 1, 3));
  const texts = [];
  let last = null;
  for await (const event of session.tail()) {
    last = event;
    if (event.data.event?.type === "asr") texts.push(event.data.event.text);
    if (texts.length === 3 && session.nextSeq === 4) {
      proxy.cut();
      recordTranscripts(session, 4, 6);
    }
    if (texts.length === 6 && session.state === "running") await session.end();
  }
  assert.deepEqual(texts, numbers(1, 6).map((number) => `Line ${number}.`));
  assert.equal(last.event, "end");
});

/** A tail may be left at any time, and read on after the last event that was seen. */
test("a_tail_is_read_on_where_it_was_left", async (t) => {
  const session = await clientTo(t, await service()).open(newId());
  await seqs(recordTranscripts(session, 1, 3));
  const texts = [];
  let after;
  for await (const { lastEventId, data } of session.tail()) {
    after = lastEventId;
    texts.push(data.event?.text);
    if (data.event?.text === "Line 2.") break;
  }
  const stopping = new AbortController();
  for await (const { data } of session.tail({ after, signal: stopping.signal })) {
    texts.push(data.event?.text);
    if (data.event?.text === "Line 3.") stopping.abort();
  }
  assert.deepEqual(texts.filter(Boolean), ["Line 1.", "Line 2.", "Line 3."]);
});

/** What cannot be read is said at once: a session that does not exist, a server that is away. */
test("a_tail_of_nothing_is_an_error", async (t) => {
  const one = await service();
  const [port] = await freePorts(1);
  const first = async (tail) => {
    for await (const event of tail) return event;
  };
  const client = clientTo(t, one);
  const refused = await thrown(first(client.session(newId()).tail({ query: { no_such: 1 } })));
  assert.ok(refused instanceof RequestRefused);
  const away = clientFor(t, one.url, { restUrl: `http://127.0.0.1:${port}` });
  assert.ok((await thrown(first(away.tail()))) instanceof Unreachable);
});

/** Server-sent events are read in pieces of any size, and are bounded. */
test("events_come_in_pieces", () => {
  const text = ": hi\nid: 1\nevent: x\ndata: {\ndata:  1}\r\n\nid: 2\n\nevent: y\ndata\n\n";
  for (const size of [1, 3, 100]) {
    const decoder = new Decoder(100);
    const events = [];
    for (let begin = 0; begin < text.length; begin += size) events.push(...decoder.feed(text.slice(begin, begin + size)));
    assert.deepEqual(events, [
      { data: "{\n 1}", event: "x", id: "1" },
      { data: null, event: "", id: "2" },
      { data: "", event: "y", id: null },
    ]);
  }
  assert.throws(() => [...new Decoder(10).feed("data: 12345678901\n")], TooLong);
  assert.throws(() => [...new Decoder(10).feed("data: 12345")], TooLong);
});

/** Memories are kept, found, read with their evidence, changed, listed, forgotten and removed. */
test("memories_are_kept_and_found", async (t) => {
  const client = clientTo(t, await service());
  const user_id = newId();
  const memory = await client.memories.add("Ann drinks green tea.", { user_id, kind: "preference", topics: ["tea"] });
  assert.equal((await client.memories.read(memory.id, { evidence: true })).text, "Ann drinks green tea.");
  assert.equal((await client.memories.change(memory.id, { pinned: true })).pinned, true);
  assert.equal((await client.memories.ofUser(user_id, { topic: "tea" })).memories.length, 1);
  const found = await client.search("green tea", { user_id });
  assert.ok(JSON.stringify(found).includes(memory.id));
  assert.deepEqual((await client.memories.forget(user_id, { everything: true, dry_run: true })).ids, [memory.id]);
  await client.memories.remove(memory.id);
  assert.equal((await client.memories.ofUser(user_id)).memories.length, 0);
});

/** A call is exported as a document, and many calls line by line to a last line that says so. */
test("calls_are_exported", async (t) => {
  const client = clientTo(t, await service());
  const user_id = newId();
  const session = await client.open(newId(), { config: { user_id } });
  recordTranscripts(session, 1, 2);
  await session.end();
  assert.ok((await client.export(session.sessionId, { format: "markdown" })).includes("Line 2."));
  for (const lines of [client.exportCalls({ format: "jsonl", user_id }), client.exportUser(user_id)]) {
    const types = [];
    for await (const line of lines) types.push(line.type);
    assert.ok(types.length > 1);
    assert.equal(types.at(-1), "end");
  }
});
