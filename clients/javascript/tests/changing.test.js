/** What a client's session changes of a memory: messages, what is forgotten, working memory, data. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { Unreachable } from "../source/index.js";
import { clientFor, clientTo, newId, service, thrown } from "./clients.js";
import { freePorts } from "./service.js";

/** Messages that did not come as events stand in the history, and leave every context when they are forgotten. */
test("messages_are_added_and_forgotten", async (t) => {
  const session = await clientTo(t, await service()).open(newId());
  const added = await session.add(
    { role: "user", content: "My name is Ann.", turn_id: 0 },
    { role: "assistant", content: "Hello Ann.", turn_id: 0 },
  );
  await session.add({ role: "user", content: "Is it raining?" });
  const forgotten = await session.forget({ throughTurn: 0 });
  assert.deepEqual(added, { position: 2, turn_id: 0 });
  assert.deepEqual([forgotten.forgotten, forgotten.remembered], [2, 1]);
  assert.deepEqual((await session.context()).messages, [{ role: "user", content: "Is it raining?" }]);
  assert.equal((await session.history()).contents.length, 3);
});

/** Forgetting nothing in particular would forget everything, so it is no default. */
test("it_must_be_said_what_to_forget", async (t) => {
  const session = await clientTo(t, await service()).open(newId());
  for (const given of [{}, { keepLast: 1, everything: true }]) {
    assert.match((await thrown(session.forget(given))).message, /throughTurn/);
  }
});

/** What is read of either is then of both, until the link is removed. */
test("two_ids_of_one_person_are_linked", async (t) => {
  const { memories } = await clientTo(t, await service());
  const [number, account] = [`tel/${newId()}`, newId()];
  await memories.add("Likes tea.", { user_id: number });
  await memories.link(number, account);
  assert.equal((await memories.ofUser(account)).memories.length, 1);
  await memories.unlink(account);
  assert.equal((await memories.ofUser(account)).memories.length, 0);
});

/** The document is read, merged, replaced and cleared; a version that has passed is refused. */
test("working_memory", async (t) => {
  const config = { working_memory: { schema: { type: "object" }, tools: true } };
  const { workingMemory: memory } = await clientTo(t, await service()).open(newId(), { config });
  await memory.append({ name: "Ann" });
  assert.deepEqual((await memory.append({ likes: ["tea"] }, { expected: 1 })).content, { name: "Ann", likes: ["tea"] });
  assert.equal((await thrown(memory.replace({}, { expected: 1 }))).code, "precondition_failed");
  assert.deepEqual((await memory.replace({ name: "Bo" })).content, { name: "Bo" });
  assert.deepEqual((await memory.read(1)).content, { name: "Ann" });
  assert.equal((await memory.clear()).version, 4);
  assert.ok((await memory.tools()).some((tool) => tool.function.name === "update_working_memory"));
  const call = { name: "update_working_memory", arguments: '{"content": {"name": "Cy"}}' };
  assert.equal((await memory.execute({ id: "c1", type: "function", function: call })).role, "tool");
  assert.deepEqual((await memory.read()).content, { name: "Cy" });
});

/** An object of the program's own is merged; null removes a value. */
test("data", async (t) => {
  const session = await clientTo(t, await service()).open(newId());
  await session.updateData({ table: 7, waiter: "Bo" });
  assert.deepEqual(await session.updateData({ waiter: null }), { table: 7 });
  assert.deepEqual(await session.data(), { table: 7 });
});

/** Without one the error says so. */
test("all_of_it_needs_a_rest_url", async (t) => {
  const session = await clientFor(t, (await service()).url).open(newId());
  for (const change of [() => session.add(), () => session.data(), () => session.updateData({})]) {
    assert.equal((await thrown(change())).code, "no_rest_url");
  }
  assert.throws(() => session.workingMemory, /no_rest_url/);
});

/** It is not tried again by itself, since it might be made twice. */
test("a_change_that_gets_no_answer_says_so", async (t) => {
  const [port] = await freePorts(1);
  const session = await clientFor(t, (await service()).url, { restUrl: `http://127.0.0.1:${port}` }).open(newId());
  assert.ok((await thrown(session.add({ role: "user", content: "Hi." }))) instanceof Unreachable);
});
