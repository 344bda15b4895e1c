/** A running `voicemem serve` for the tests, and what they ask it without the client. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("../../..", import.meta.url));
const VENV = join(ROOT, ".venv/bin/python");
export const PYTHON = process.env.PYTHON ?? (existsSync(VENV) ? VENV : "python3");
/** No test waits longer for anything; a machine may be busy. */
export const LONG_MS = 60_000;

/** A process on a file. It is killed when the tests of a file have ended. */
export class Service {
  constructor(folder, rest, ingest, options) {
    Object.assign(this, { folder, rest, ingest, options });
    this.process = null;
    /** Under which the tests ask it; those with keys set it. */
    this.adminKey = undefined;
    this.url = `ws://127.0.0.1:${ingest}`;
    this.restUrl = `http://127.0.0.1:${rest}`;
  }

  /** Start it, or start it again after `kill`, on the same ports and, without another `store`, the same file. */
  async start({ store = "calls.db" } = {}) {
    const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("VOICEMEM_")));
    const address = (port) => `127.0.0.1:${port}`;
    const file = `sqlite:${join(this.folder, store)}`;
    const ports = ["--rest", address(this.rest), "--ingest", address(this.ingest)];
    this.process = spawn(PYTHON, ["-m", "voicemem", "serve", "--store", file, ...ports, ...this.options], {
      env: { ...env, PYTHONPATH: ROOT },
      stdio: ["ignore", "pipe", "pipe"],
    });
    let shown = "";
    this.process.stderr.on("data", (piece) => (shown += piece));
    for await (const piece of this.process.stdout.iterator({ destroyOnReturn: false })) {
      shown += piece;
      if (shown.includes("webhook")) break;
    }
    if (!shown.includes("webhook")) throw new Error(`the service has not started: ${shown}`);
    this.process.stdout.resume();
    for (const handle of [this.process, this.process.stdout, this.process.stderr]) handle.unref();
    return this;
  }

  async kill(signal = "SIGKILL") {
    if (this.process === null || this.process.exitCode !== null || this.process.signalCode !== null) return;
    const ended = once(this.process, "exit");
    this.process.ref();
    this.process.kill(signal);
    await ended;
  }

  /** SIGTERM: it takes its leave of the producers. */
  stop() {
    return this.kill("SIGTERM");
  }

  /** A request to the REST API. */
  async request(method, path, body) {
    const headers = this.adminKey ? { Authorization: `Bearer ${this.adminKey}` } : {};
    const response = await fetch(this.restUrl + path, { method, headers, body: body && JSON.stringify(body) });
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
    return text ? JSON.parse(text) : null;
  }

  /** The messages of a session. */
  async contents(sessionId) {
    return (await this.request("GET", `/v1/sessions/${sessionId}/history`)).contents;
  }

  /** The journal of a session: the rows of its producers, and of the service. */
  async journal(sessionId) {
    const headers = this.adminKey ? { Authorization: `Bearer ${this.adminKey}` } : {};
    const response = await fetch(`${this.restUrl}/v1/sessions/${sessionId}/events`, { headers });
    return (await response.text()).split("\n").filter(Boolean).map((line) => JSON.parse(line));
  }

  /** The configuration and the state of a session. */
  session(sessionId) {
    return this.request("GET", `/v1/sessions/${sessionId}`);
  }
}

/** A service of one's own. */
export async function serve(...options) {
  const folder = mkdtempSync(join(tmpdir(), "voicemem-"));
  const [rest, ingest] = await freePorts(2);
  const service = new Service(folder, rest, ingest, options);
  process.once("exit", () => {
    service.process?.kill("SIGKILL");
    rmSync(folder, { recursive: true, force: true });
  });
  return service.start();
}

/** Ports below those that the system gives out, so that they stay free while a service is away. */
export async function freePorts(count) {
  const ports = new Set();
  while (ports.size < count) {
    const port = 20_000 + Math.floor(Math.random() * 12_000);
    if (await isFree(port)) ports.add(port);
  }
  return [...ports];
}

function isFree(port) {
  return new Promise((resolve) => {
    const server = createServer();
    server.once("error", () => resolve(false));
    server.listen(port, "127.0.0.1", () => server.close(() => resolve(true)));
  });
}

/** Wait until something holds. */
export async function until(holds, what = "what was waited for") {
  const deadline = Date.now() + LONG_MS;
  while (!(await holds())) {
    if (Date.now() > deadline) throw new Error(`${what} has not happened`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}
