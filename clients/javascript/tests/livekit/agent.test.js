/** Calls of real sessions of `@livekit/agents`, and the memory of them (docs/livekit.md). */
import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";
import { WebSocket } from "ws";

import { attach } from "../../source/livekit/livekit.js";
import { clientFor, clientTo, newId, service } from "../clients.js";
import { freePorts, until } from "../service.js";
import { ended } from "../tee/vendors.js";
import { offlineSession } from "./offline.js";

const one = await service();
const ASKED = "What is the weather?";
const FORECAST = "In Oslo it rains until noon and then the sun comes out again for everybody.";
const ANSWERS = [
  { input: ASKED, content: FORECAST },
  { input: "Until when?", content: "Noon." },
];

/** Resolves with the first reply of the agent that is added to its history. */
async function replies(session, count) {
  let left = count;
  while (left > 0) {
    const [{ item }] = await once(session, "conversation_item_added");
    if (item.role === "assistant") left -= 1;
  }
}

/** A barge-in, over a real session with scripted ears and voice: the memory has what was heard, and the end. */
test("a_call_with_a_barge_in", async (t) => {
  const id = newId();
  const { session, speaker, ear, say, start } = await offlineSession(t, ANSWERS);
  const memory = attach(session, clientTo(t, one, { WebSocket }), { sessionId: id });
  await start();
  await until(() => ear.speech);
  const both = replies(session, 2);
  say("What is", ASKED);
  await until(() => speaker.played() >= 3);
  say("Until", "Until when?");
  await both;
  await session.close();
  await memory.close();
  assert.equal(memory.dropped, 0);
  await ended(one, id);
  const contents = await one.contents(id);
  assert.deepEqual(contents.map(({ role }) => role), ["user", "assistant", "user", "assistant"]);
  const [asked, cut, again, last] = contents.map(({ content }) => content);
  assert.deepEqual([asked, again, last], [ASKED, "Until when?", "Noon."]);
  const [{ textContent }] = session.history.items.filter(({ role }) => role === "assistant");
  assert.equal(cut, textContent.trim());
  assert.ok(cut !== "" && FORECAST.startsWith(cut) && cut !== FORECAST, cut);
  assert.equal(contents[1].metadata.interrupted, true);
  const journal = JSON.stringify(await one.journal(id));
  assert.ok(!journal.includes("xyzzy"), "instructions stay in the process");
  const { reason } = (await one.journal(id)).map((row) => row.event.frame ?? {}).find((frame) => frame.type === "close");
  assert.equal(reason, "user_initiated");
});

/** A tool that LiveKit executes is remembered, with what it was called with and what it gave. */
test("a_call_with_a_tool", async (t) => {
  const id = newId();
  const { session, ear, say, start } = await offlineSession(t, [
    { input: "And tomorrow?", toolCalls: [{ name: "forecast", args: { day: "tomorrow" } }] },
    { input: JSON.stringify("sun"), content: "Sun." },
  ]);
  const memory = attach(session, clientTo(t, one, { WebSocket }), { sessionId: id });
  await start();
  await until(() => ear.speech);
  const executed = once(session, "function_tools_executed");
  const answered = replies(session, 1);
  say("And tomorrow?");
  await executed;
  await answered;
  const body = await memory.context({ tools: true });
  const [call] = body.messages.flatMap((message) => message.tool_calls ?? []);
  assert.deepEqual([call.function.name, JSON.parse(call.function.arguments)], ["forecast", { day: "tomorrow" }]);
  assert.deepEqual(body.messages.filter(({ role }) => role === "tool").map(({ content }) => content), ['"sun"']);
  await memory.close({ reason: "enough" });
  await session.close();
  assert.equal(memory.dropped, 0);
  assert.equal((await one.journal(id)).find((row) => row.event.type === "session.end").event.reason, "enough");
});

/** Nobody listens: the session goes on as without a memory, and closing the memory ends in its time. */
test("a_memory_that_is_away_costs_the_call_nothing", async (t) => {
  const [port] = await freePorts(1);
  const warnings = [];
  const away = clientFor(t, `ws://127.0.0.1:${port}`, {
    restUrl: `http://127.0.0.1:${port}`,
    WebSocket,
    contextTimeoutMs: 50,
    warn: (sentence) => warnings.push(sentence),
  });
  const { session, ear, say, start } = await offlineSession(t, ANSWERS);
  const memory = attach(session, away);
  await start();
  await until(() => ear.speech);
  const answered = replies(session, 1);
  say("Until when?");
  await answered;
  assert.equal(await memory.context(), null);
  await memory.close({ timeoutMs: 10 });
  await session.close();
  assert.equal(memory.dropped, 0);
});

/** An event of another form is left out and said once; the listener never throws into LiveKit. */
test("events_that_are_not_as_expected", async (t) => {
  const warnings = [];
  const client = clientTo(t, one, { WebSocket, warn: (sentence) => warnings.push(sentence) });
  const listeners = new Map();
  const memory = attach({ on: (type, listener) => listeners.set(type, listener) }, client, { sessionId: newId() });
  assert.throws(() => attach({}, client), /AgentSession/);
  for (const [type, listener] of listeners) {
    for (const wrong of [{ type }, { type, item: null, functionCalls: 7 }, null, "text", { type: "constructor" }]) {
      listener(wrong);
    }
  }
  assert.equal(warnings.filter((one) => one.startsWith("An event of LiveKit")).length, 1);
  await memory.close();
});
