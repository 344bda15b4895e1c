/** Why a server could not be reached, in words. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { Blocked, Busy, NotUpgraded } from "../source/errors.js";
import { RequestRefused, Unreachable } from "../source/index.js";
import { handshakeError } from "../source/transport/connection.js";
import { CHECKS, checkOf, displayUrl, unreachable, withCheck } from "../source/transport/failures.js";

const URL_WITH_SECRETS = "wss://me:hidden@h:1/v1/ingest?token=hidden";
const failed = (code, more = {}) => Object.assign(new TypeError("fetch failed"), { cause: Object.assign(new Error(""), { code, ...more }) });

/** Each failure names its address, without secrets, and why; also those whose own text is empty. */
test("a_reason_is_never_empty", () => {
  const cases = [
    [new DOMException("", "AbortError"), "timed out after 2.5 s"],
    [failed(undefined, { errors: [{ code: "ECONNREFUSED" }, { code: "ECONNREFUSED" }] }), "connection refused"],
    [failed("ENETUNREACH", { message: "Network is unreachable" }), "Network is unreachable"],
    [failed("ENOTFOUND"), "unknown host"],
    [failed("EAI_AGAIN"), "unknown host: EAI_AGAIN"],
    [failed("UND_ERR_SOCKET"), "the connection was closed before the answer was complete"],
    [failed("ECONNRESET"), "the connection was closed before the answer was complete"],
    [new TypeError("Failed to fetch"), "Failed to fetch"],
    [new Error(""), "Error"],
  ];
  for (const [error, reason] of cases) {
    const failure = unreachable(URL_WITH_SECRETS, error, 2_500, "GET");
    assert.deepEqual([failure.detail, failure.reason], [`GET wss://h:1/v1/ingest: ${reason}.`, reason]);
  }
});

/** What to check follows the reason as a sentence; for other reasons there is nothing to say. */
test("each_check_is_found_by_its_reason", () => {
  assert.deepEqual(Object.keys(CHECKS).map((reason) => checkOf(`${reason}: more`)), Object.values(CHECKS));
  assert.equal(withCheck("the moon is full"), "the moon is full.");
});

/** User, password, query and fragment are left out. */
test("an_address_is_shown_without_secrets", () => {
  assert.equal(displayUrl(`${URL_WITH_SECRETS}#hidden`), "wss://h:1/v1/ingest");
});

/** It is final, a reason to be patient, a service that is away, or something on the way that forbids websockets. */
test("an_answer_instead_of_a_websocket", () => {
  const ours = (reason) => JSON.stringify({ type: `urn:voicemem:error:${reason}`, reason, detail: "Some reason." });
  const cases = [
    [401, ours("unauthorized"), RequestRefused],
    [429, ours("rate_limited"), Busy],
    [429, "slow down", Busy],
    [503, ours("store_unavailable"), Busy],
    [503, ours("draining"), Unreachable],
    [502, "<h1>Bad gateway</h1>", Unreachable],
    [403, "<h1>Forbidden</h1>", Blocked],
    [404, '["not", "an", "object"]', Blocked],
    [426, ours("invalid_http"), NotUpgraded],
  ];
  for (const [status, body, kind] of cases) {
    const error = handshakeError("ws://h", status, body);
    assert.equal(error.constructor, kind);
    assert.ok(kind === RequestRefused || error.message.includes(`HTTP status ${status}: `));
  }
});
