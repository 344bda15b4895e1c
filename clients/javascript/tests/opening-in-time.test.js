/** Opening while the server is away, silent, or something else: it ends in time, and says why. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { createServer } from "node:tls";
import { fileURLToPath } from "node:url";

import { Client, Unreachable } from "../source/index.js";
import { QUICK, behindProxy, newId, recordTranscripts, seqs, thrown } from "./clients.js";
import { hangUp, listener, sayNothing, speakAnotherProtocol } from "./scripted-server.js";
import { PYTHON, freePorts } from "./service.js";

const SHORT_MS = 300;

/** What an open of `SHORT_MS` says; on a busy machine the one by whose end the expected failure has come. */
async function whyNotOpened(t, url, { expected = ": ", ...options } = {}) {
  const client = new Client(url, { ...QUICK, ...options });
  t.after(() => client.close());
  while (true) {
    const error = await thrown(client.open("s", { timeoutMs: SHORT_MS }));
    assert.ok(error instanceof Unreachable);
    if (error.detail.includes(expected)) return error.detail;
  }
}

/** Where nobody listens, an open ends with both addresses, the reason and what to check. */
test("an_open_that_is_refused_says_where", async (t) => {
  const [port] = await freePorts(1);
  const refusing = `127.0.0.1:${port}`;
  const ways = { restUrl: `http://${refusing}`, fallbackAfter: 1, expected: `http://${refusing}: connection refused.` };
  const detail = await whyNotOpened(t, `ws://${refusing}`, ways);
  assert.ok(detail.includes(`ws://${refusing}/v1/ingest: connection refused.`));
  assert.equal(detail.split("Check that `voicemem serve` runs there").length, 2);
});

/** A name that does not exist is given as the reason. */
test("an_unknown_host_is_named", async (t) => {
  const expected = "wss://memory.invalid/v1/ingest: unknown host";
  assert.match(await whyNotOpened(t, "wss://memory.invalid", { expected }), /Check the name/);
});

/** The reason is OpenSSL's word for it, and the check says where trust comes from. */
test("a_certificate_that_is_not_trusted_is_named", async (t) => {
  const server = createServer(selfSigned(t), (socket) => socket.on("error", () => {}));
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => server.close());
  const url = `wss://127.0.0.1:${server.address().port}`;
  const detail = await whyNotOpened(t, url, { expected: `${url}/v1/ingest: CERTIFICATE_VERIFY_FAILED: ` });
  assert.ok(detail.includes("NODE_EXTRA_CA_CERTS"));
});

/** A connection that is accepted and never answered, before or after TLS, ends with the open's own time. */
test("a_server_that_says_nothing_is_not_waited_for", async (t) => {
  for (const scheme of ["ws", "wss"]) {
    const url = `${scheme}://127.0.0.1:${await listener(t, sayNothing)}`;
    assert.ok((await whyNotOpened(t, url)).includes(`${url}/v1/ingest: timed out after 0.3 s.`));
  }
});

/** A websocket that is there, and over which no answer comes, ends with the open's own time; then the next works. */
test("a_service_that_does_not_answer_an_open_is_not_waited_for", async (t) => {
  const { proxy, client } = await behindProxy(t);
  await client.open(newId());
  proxy.toClient.swallow = true;
  const error = await thrown(client.open(newId(), { timeoutMs: SHORT_MS }));
  assert.match(error.detail, /timed out after 0\.3 s/);
  proxy.toClient.swallow = false;
  await seqs(recordTranscripts(await client.open(newId()), 1, 1));
});

/** A server of another kind is a reason too. */
test("what_is_not_voicemem_is_named", async (t) => {
  for (const [handle, reason] of [
    [hangUp, "the connection was closed before the answer was complete"],
    [speakAnotherProtocol, "the answer is not valid HTTP"],
  ]) {
    const url = `ws://127.0.0.1:${await listener(t, handle)}`;
    await whyNotOpened(t, url, { expected: `${url}/v1/ingest: ${reason}` });
  }
});

/** `wss://` to a server without TLS. */
test("tls_on_one_side_only_is_named", async (t) => {
  const url = `wss://127.0.0.1:${await listener(t, speakAnotherProtocol)}`;
  await whyNotOpened(t, url, { expected: `${url}/v1/ingest: TLS failed: ` });
});

/** User, password and query stay out of errors. */
test("secrets_of_an_address_are_not_shown", async (t) => {
  const address = `127.0.0.1:${(await freePorts(1))[0]}`;
  const detail = await whyNotOpened(t, `ws://me:hidden@${address}/v1/ingest?token=hidden`);
  assert.deepEqual([detail.includes(`ws://${address}/v1/ingest: `), detail.includes("hidden")], [true, false]);
});

/** What cannot be the root of a REST API is an error where nobody is on the phone. */
test("a_rest_url_is_checked", () => {
  for (const restUrl of ["127.0.0.1:8080", "ftp://h", "http://", "http://h:99999", "http://me:hidden@h"]) {
    assert.throws(() => new Client("ws://h", { restUrl }), /REST URL/);
  }
});

/** So is a key that no header can carry. */
test("a_key_is_checked", () => {
  for (const key of ["vm_\n", "vm_é"]) assert.throws(() => new Client("ws://h", { key }), /printable ASCII/);
});

/** A key and a certificate that nobody vouches for. */
function selfSigned(t) {
  const folder = mkdtempSync(join(tmpdir(), "voicemem-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const code = "import pathlib, sys; from tests.support.servers.certificates import self_signed_tls as make; make(pathlib.Path(sys.argv[1]))";
  execFileSync(PYTHON, ["-c", code, folder], { cwd: fileURLToPath(new URL("../../..", import.meta.url)) });
  const texts = readdirSync(folder).map((name) => readFileSync(join(folder, name), "utf8"));
  const block = (name) => new RegExp(`-----BEGIN ${name}-----.*?-----END ${name}-----`, "s").exec(texts.join("\n"))[0];
  return { key: block("PRIVATE KEY"), cert: block("CERTIFICATE") };
}
