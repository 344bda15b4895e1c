/** Servers that are not voicemem: a websocket that follows a script, and listeners of all kinds. */
import { createHash } from "node:crypto";
import { once } from "node:events";
import { createServer as createHttpServer } from "node:http";
import { createServer } from "node:net";

const GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/** A websocket, of which the script receives texts, sends texts, and which it closes. */
class ScriptedSocket {
  constructor(socket) {
    this.socket = socket;
    this.received = [];
    this.waiting = [];
    this.bytes = Buffer.alloc(0);
    this.closed = once(socket, "close").catch(() => {});
    socket.on("data", (piece) => this.feed(piece));
    socket.on("error", () => {});
  }

  feed(piece) {
    this.bytes = Buffer.concat([this.bytes, piece]);
    for (let frame = this.next(); frame !== null; frame = this.next()) {
      if (frame.opcode === 8) this.socket.end(Buffer.from([0x88, 0]));
      if (frame.opcode !== 1) continue;
      const text = frame.payload.toString();
      const taker = this.waiting.shift();
      if (taker) taker(text);
      else this.received.push(text);
    }
  }

  /** The first frame that is whole; null if there is none. */
  next() {
    const { bytes } = this;
    if (bytes.length < 6) return null;
    const short = bytes[1] & 0x7f;
    const head = short === 127 ? 10 : short === 126 ? 4 : 2;
    if (bytes.length < head + 4) return null;
    const length = short === 127 ? Number(bytes.readBigUInt64BE(2)) : short === 126 ? bytes.readUInt16BE(2) : short;
    const end = head + 4 + length;
    if (bytes.length < end) return null;
    const mask = bytes.subarray(head, head + 4);
    const payload = Buffer.from(bytes.subarray(head + 4, end).map((byte, index) => byte ^ mask[index % 4]));
    this.bytes = bytes.subarray(end);
    return { opcode: bytes[0] & 0x0f, payload };
  }

  receive() {
    if (this.received.length) return Promise.resolve(this.received.shift());
    return new Promise((resolve) => this.waiting.push(resolve));
  }

  send(text) {
    this.write(1, Buffer.from(text));
  }

  close(code, reason = "") {
    const payload = Buffer.alloc(2 + Buffer.byteLength(reason));
    payload.writeUInt16BE(code);
    payload.write(reason, 2);
    this.write(8, payload);
  }

  write(opcode, payload) {
    const head = payload.length < 126 ? [payload.length] : [126, payload.length >> 8, payload.length & 0xff];
    if (!this.socket.destroyed) this.socket.write(Buffer.concat([Buffer.from([0x80 | opcode, ...head]), payload]));
  }
}

/** The URL of a websocket server that does what a script says with each connection. */
export async function saying(t, script) {
  const server = createHttpServer();
  const sockets = new Set();
  server.on("upgrade", (request, socket) => {
    sockets.add(socket);
    const accept = createHash("sha1").update(request.headers["sec-websocket-key"] + GUID).digest("base64");
    const head = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade"];
    socket.write([...head, `Sec-WebSocket-Accept: ${accept}`, "", ""].join("\r\n"));
    script(new ScriptedSocket(socket));
  });
  await listening(t, server, sockets);
  return `ws://127.0.0.1:${server.address().port}`;
}

/** The port of a TCP server that does this with each connection. */
export async function listener(t, handle) {
  const sockets = new Set();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on("error", () => {});
    handle(socket);
  });
  await listening(t, server, sockets);
  return server.address().port;
}

/** The port of an HTTP server that answers all requests so. */
export async function answering(t, status, body) {
  const server = createHttpServer((request, response) => response.writeHead(status).end(body));
  server.on("upgrade", (request, socket) => {
    socket.on("error", () => {}); // it is no longer the server's: who is refused may reset it
    socket.end(`HTTP/1.1 ${status} No\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
  });
  await listening(t, server, new Set());
  return server.address().port;
}

async function listening(t, server, sockets) {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => {
    for (const socket of sockets) socket.destroy();
    server.closeAllConnections?.();
    server.close();
  });
}

/** Accepts, and says nothing. */
export const sayNothing = () => {};
/** Ends each connection once something has come. */
export const hangUp = (socket) => socket.once("data", () => socket.end());
/** Greets as a mail server does. */
export const speakAnotherProtocol = (socket) => socket.write("220 mail.example ESMTP\r\n");
/** An answer that never ends. */
export function trickle(socket) {
  socket.write("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n");
  const timer = setInterval(() => socket.write(" "), 20);
  socket.once("close", () => clearInterval(timer));
}
