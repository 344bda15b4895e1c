/** The client's side of the rules of order, without a network: what is held, sent again, and believed. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { DroppedEvents } from "../source/metrics.js";
import { EventRefused, SessionEnded, Superseded } from "../source/index.js";
import { settled } from "../source/options.js";
import { Producer } from "../source/producer.js";
import { thrown } from "./clients.js";

const ready = (more = {}) => ({ type: "session.ready", epoch: 1, next_seq: 1, incarnation: "a", ...more });
const error = (code, seq, expected = null) => ({ type: "error", code, detail: "Some reason.", seq, expected });

function made(name = "main", config = undefined) {
  const options = settled({ warn: () => {} });
  return new Producer("s", name, config, { options, drops: new DroppedEvents(options), onFinished: () => {} });
}

/** A producer that the server has answered once. */
function opened() {
  const line = made();
  line.openFrame();
  line.onReady(ready());
  return line;
}

const add = (line, count) => Array.from({ length: count }, () => line.take({ type: "asr", text: "Hi" }));
/** The seqs of what is sent next. */
const sent = (line, maxBytes = 1e6) => line.buffer.takeBatch(maxBytes).map((ack) => ack.seq);
/** The seqs of what is on disk, as far as the producer has heard. */
const done = (acks) => acks.filter((ack) => ack.done && ack.error === null).map((ack) => ack.seq);

/** Another connection; what the producer said to open on it. */
function reopen(line, answer) {
  const frame = line.openFrame();
  line.onReady(ready(answer));
  return frame;
}

/** Who knows nothing of a session goes on where the server stands. */
test("a_first_open_names_no_seq", () => {
  const line = made("asr", { name: "Call" });
  const frame = { type: "session.open", session_id: "s", producer: "asr", session: { name: "Call" } };
  assert.deepEqual(line.openFrame(), frame);
  line.onReady(ready({ next_seq: 7, next_turn: 3 }));
  assert.deepEqual([add(line, 1)[0].seq, line.nextTurn], [7, 3]);
});

/** After the one open that the client has made, everything below `next_seq` is acknowledged; the rest is resent. */
test("a_resume_drops_what_is_stored", () => {
  const line = opened();
  const acks = add(line, 5);
  assert.deepEqual(sent(line), [1, 2, 3, 4, 5]);
  assert.equal(reopen(line, { epoch: 2, next_seq: 4 }).from_seq, 1);
  assert.deepEqual([done(acks), sent(line)], [[1, 2, 3], [4, 5]]);
});

/** What was acknowledged cannot be sent again; with nothing held it is the next seq. */
test("from_seq_is_the_lowest_that_can_be_sent", () => {
  const line = opened();
  add(line, 5);
  sent(line);
  line.onAck(3);
  assert.equal(line.openFrame().from_seq, 4);
  line.onAck(5);
  assert.equal(line.openFrame().from_seq, 6);
});

/** Where others may have stored under the same seqs, `next_seq` acknowledges nothing; new events go behind it. */
test("a_resume_after_strangers_sends_all_again", () => {
  for (const answer of [{ epoch: 3 }, { epoch: 2, incarnation: "b" }, { epoch: 2, next_seq: 9 }, { epoch: null }]) {
    const line = opened();
    const acks = add(line, 3);
    sent(line);
    reopen(line, { next_seq: 4, ...answer });
    assert.deepEqual([done(acks), sent(line)], [[], [1, 2, 3]]);
    assert.equal(add(line, 1)[0].seq, answer.next_seq ?? 4);
  }
});

/** An open whose answer never came may have raised the epoch, or not: then nothing is concluded from it. */
test("a_lost_answer_to_an_open_is_a_stranger_too", () => {
  const line = opened();
  const acks = add(line, 3);
  line.openFrame();
  reopen(line, { epoch: 3, next_seq: 4 });
  assert.deepEqual([done(acks), sent(line)], [[], [1, 2, 3]]);
});

/** From the seq that is expected on, everything is sent again. */
test("a_gap_rewinds", () => {
  const line = opened();
  add(line, 5);
  assert.deepEqual(sent(line), [1, 2, 3, 4, 5]);
  assert.equal(line.onError(error("seq_gap", 4, 3)), false);
  assert.deepEqual(sent(line), [3, 4, 5]);
});

/** What is not held cannot be sent: the producer must say from where on it can. */
test("a_gap_that_cannot_be_filled_asks_for_an_open", () => {
  for (const expected of [null, 2, 9]) {
    const line = opened();
    add(line, 5);
    sent(line);
    line.onAck(3);
    assert.equal(line.onError(error("seq_gap", 5, expected)), true);
  }
});

/** Those before a refused event wait for their own acks, which cover it too. */
test("a_refusal_settles_its_event_alone", async () => {
  const line = opened();
  const acks = add(line, 3);
  sent(line);
  line.onError(error("unknown_type", 3));
  assert.deepEqual([done(acks), acks[2].done, line.buffer.length], [[], true, 3]);
  line.onAck(2);
  assert.deepEqual([done(acks), line.buffer.length, line.buffer.size], [[1, 2], 0, 0]);
  assert.ok((await thrown(acks[2])) instanceof EventRefused);
});

/** Only what is at or behind the refused event has failed. */
test("the_end_of_a_session_settles_what_came_too_late", async () => {
  const line = opened();
  const acks = add(line, 4);
  sent(line);
  line.onError(error("session_ended", 3));
  assert.deepEqual([acks.map((ack) => ack.done), line.finished], [[false, false, true, true], false]);
  line.onAck(2);
  assert.deepEqual([done(acks), line.finished], [[1, 2], true]);
  assert.ok((await thrown(add(line, 1)[0])) instanceof SessionEnded);
});

/** Everything that waits fails, and nothing more is taken. */
test("superseded_is_final", async () => {
  const line = opened();
  const acks = add(line, 2);
  line.onError(error("superseded", null));
  assert.ok(acks.every((ack) => ack.error instanceof Superseded));
  assert.ok((await thrown(add(line, 1)[0])) instanceof Superseded);
  assert.ok((await thrown(line.flush())) instanceof Superseded);
});

/** When a `session.end` is refused, the session goes on. */
test("a_refused_end_ends_nothing", () => {
  const line = opened();
  const end = line.take({ type: "session.end", last_seq: 7 });
  sent(line);
  line.onError(error("last_seq_mismatch", 1));
  assert.deepEqual([end.done, line.state, line.finished], [true, "running", false]);
  assert.equal(add(line, 1)[0].seq, 2);
});

/** A resend is the same event, byte for byte; frames hold whole events, and at least one. */
test("an_event_is_sent_in_the_same_words", () => {
  const line = opened();
  add(line, 30);
  const payloads = () => line.buffer.takeBatch(1_000).map((ack) => ack.payload);
  const first = payloads();
  line.buffer.rewind();
  assert.deepEqual(payloads(), first);
  assert.ok(first.length > 1 && first.length < 30);
  assert.ok(first.join(",").length <= 1_000);
  assert.equal(line.buffer.takeBatch(1).length, 1);
  const names = ["producer", "seq", "session_id", "text", "ts", "type"];
  assert.deepEqual(Object.keys(JSON.parse(first[0])).sort(), names);
});

/** An open that was given up may be taken after the one that followed it: then the producer opens once more. */
test("an_own_open_that_comes_late_supersedes_nobody_else", async () => {
  const line = opened();
  line.openFrame();
  reopen(line, { epoch: 2 });
  assert.equal(line.onError(error("superseded", null)), true);
  reopen(line, { epoch: 4 });
  assert.equal(line.onError(error("superseded", null)), false);
  assert.ok((await thrown(add(line, 1)[0])) instanceof Superseded);
});

/** When the epochs show that all of the producer's own opens were taken, whoever supersedes it is somebody else. */
test("an_own_open_that_was_taken_in_time_excuses_nobody", async () => {
  const line = opened();
  line.openFrame();
  reopen(line, { epoch: 3 });
  assert.equal(line.onError(error("superseded", null)), false);
  assert.ok((await thrown(add(line, 1)[0])) instanceof Superseded);
});
