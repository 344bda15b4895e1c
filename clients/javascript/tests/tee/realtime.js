/** Calls of the real `openai` package to a vendor on this machine: it wants TLS. */
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:https";
import { tmpdir } from "node:os";
import { join } from "node:path";
import OpenAI from "openai";
import { OpenAIRealtimeWS } from "openai/realtime/ws";

import { arrivals, vendorAt } from "./vendors.js";

/** A certificate for this machine alone, and its key. */
function certificate() {
  const folder = mkdtempSync(join(tmpdir(), "voicemem-tls-"));
  const [key, cert] = ["key.pem", "cert.pem"].map((name) => join(folder, name));
  const of = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"];
  const made = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"];
  execFileSync("openssl", [...made, ...of, "-keyout", key, "-out", cert], { stdio: "ignore" });
  const pair = { key: readFileSync(key), cert: readFileSync(cert) };
  rmSync(folder, { recursive: true });
  return pair;
}

/** A connection of the SDK that is open, and both ends of it; `more` goes to the SDK. */
export async function realtimeCall(t, more = {}) {
  const pair = certificate();
  const server = createServer(pair);
  const vendor = await vendorAt(t, { server: server.listen(0, "127.0.0.1") });
  t.after(() => server.close());
  const client = new OpenAI({ apiKey: "key", baseURL: `https://127.0.0.1:${server.address().port}/v1` });
  const connection = new OpenAIRealtimeWS({ model: "gpt-realtime", options: { ca: pair.cert }, ...more }, client);
  const [other] = await Promise.all([vendor.next(), once(connection.socket, "open")]);
  t.after(() => connection.close());
  return { connection, other, vendor, ends: endsOfSdk(connection, other) };
}

/** Both ends: the SDK takes and gives objects. */
export function endsOfSdk(connection, other) {
  const events = [];
  const waiting = [];
  connection.on("error", () => {});
  connection.on("event", (event) => {
    const waiter = waiting.shift();
    if (waiter) waiter(JSON.stringify(event));
    else events.push(JSON.stringify(event));
  });
  return {
    appSends: (text) => connection.send(JSON.parse(text)),
    appGets: () => (events.length ? Promise.resolve(events.shift()) : new Promise((resolve) => waiting.push(resolve))),
    vendorSends: (text) => other.send(text),
    vendorGets: arrivals(other),
  };
}
