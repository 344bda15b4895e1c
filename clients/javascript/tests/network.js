/** A TCP proxy that misbehaves as networks do; `toServer` and `toClient` say what goes wrong in each direction. */
import { once } from "node:events";
import { connect, createServer } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";

const IN_FLIGHT = 64;

/** What goes wrong in one direction; as it is made, nothing does. */
export class Toxics {
  latencyMs = 0;
  /** At most so much more latency, by chance; the order of the bytes stays. */
  jitterMs = 0;
  bytesPerS = null;
  sliceBytes = null;
  /** End each connection once so many bytes of it have passed, also in the middle of a message. */
  limitBytes = null;
  /** Only the first connection that reaches the limit is ended; then there is none any more. */
  limitOnce = false;
  /** End it there with a RST instead of a FIN. */
  resetAtLimit = false;
  /** Half-open: bytes vanish, no end is passed on, the connection stays. */
  swallow = false;
  slowCloseMs = 0;
}

export class NetworkProxy {
  constructor(port) {
    this.target = port;
    this.port = 0;
    this.toServer = new Toxics();
    this.toClient = new Toxics();
    this.passing = new Set();
    this.accepted = 0;
    this.server = null;
  }

  get url() {
    return `ws://127.0.0.1:${this.port}`;
  }

  get restUrl() {
    return `http://127.0.0.1:${this.port}`;
  }

  /** Listen, on the same port as before. */
  async up() {
    this.server = createServer({ allowHalfOpen: true }, (client) => this.accept(client));
    this.server.unref();
    this.server.listen(this.port, "127.0.0.1");
    await once(this.server, "listening");
    this.port = this.server.address().port;
    return this;
  }

  /** Refuse connections, and reset those that there are. */
  async down() {
    const { server } = this;
    this.server = null;
    const closed = server === null ? null : new Promise((resolve) => server.close(resolve));
    this.reset();
    await closed;
  }

  cut() {
    for (const one of [...this.passing]) one.cut();
  }

  reset() {
    for (const one of [...this.passing]) one.reset();
  }

  accept(client) {
    this.accepted += 1;
    const server = connect({ port: this.target, host: "127.0.0.1", allowHalfOpen: true });
    const one = {
      swallowing: new Set(),
      passed: { toServer: 0, toClient: 0 },
      cut: () => [client, server].forEach((end) => end.destroySoon()),
      reset: () => [client, server].forEach((end) => end.resetAndDestroy()),
    };
    this.passing.add(one);
    for (const end of [client, server]) {
      end.on("error", () => {});
      end.setNoDelay(true);
    }
    const ways = [this.carry(one, "toServer", client, server), this.carry(one, "toClient", server, client)];
    Promise.all(ways).then(() => {
      this.passing.delete(one);
      one.cut();
    });
  }

  /** One direction, until its source ends. */
  async carry(one, way, source, sink) {
    let last = Promise.resolve(true);
    let underWay = 0;
    const deliver = (data) => {
      const { latencyMs, jitterMs } = this[way];
      const due = Date.now() + latencyMs + Math.random() * jitterMs;
      underWay += 1;
      if (underWay > IN_FLIGHT) source.pause();
      last = last.then(async (goesOn) => {
        const more = goesOn && (await this.deliver(one, way, data, sink, due));
        underWay -= 1;
        source.resume();
        return more;
      });
      return last;
    };
    source.on("data", deliver);
    await new Promise((resolve) => {
      source.once("end", resolve);
      source.once("close", resolve);
    });
    await deliver(null);
  }

  async deliver(one, way, data, sink, due) {
    if (due > Date.now()) await sleep(due - Date.now());
    if (this[way].swallow || one.swallowing.has(way)) {
      one.swallowing.add(way); // what has lost bytes can never be a whole stream again
      return true;
    }
    if (data !== null) return this.write(one, way, data, sink);
    await sleep(this[way].slowCloseMs);
    sink.destroySoon();
    return false;
  }

  /** Pass bytes on, in the pieces that the toxics make of them; whether the connection goes on. */
  async write(one, way, data, sink) {
    const toxics = this[way];
    let size = toxics.sliceBytes ?? data.length;
    if (toxics.bytesPerS !== null) size = Math.min(size, Math.max(1, Math.floor(toxics.bytesPerS / 50)));
    for (let begin = 0; begin < data.length; begin += size) {
      const { limitBytes, bytesPerS } = toxics;
      const left = limitBytes === null ? size : Math.max(0, limitBytes - one.passed[way]);
      const piece = data.subarray(begin, begin + Math.min(size, left));
      if (sink.destroyed) return false;
      if (piece.length && !sink.write(piece)) {
        await Promise.race([once(sink, "drain"), once(sink, "close")]).catch(() => {});
      }
      one.passed[way] += piece.length;
      if (limitBytes !== null && one.passed[way] >= limitBytes) {
        if (toxics.limitOnce) toxics.limitBytes = null;
        if (toxics.resetAtLimit) one.reset();
        else one.cut();
        return false;
      }
      if (bytesPerS !== null) await sleep((1000 * piece.length) / bytesPerS);
      else if (toxics.sliceBytes !== null) await new Promise(setImmediate);
    }
    return true;
  }
}

/** A proxy in front of a port, which goes away after the test `t`. */
export async function proxyOf(t, port) {
  const proxy = await new NetworkProxy(port).up();
  t.after(() => proxy.down());
  return proxy;
}
