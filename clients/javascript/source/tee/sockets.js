/**
 * The kinds of connections, and how all of their messages are seen.
 *
 * What is received is listened to; `send` and `close` are replaced on the connection itself, so it stays what it was for
 * the program and for its SDK. A copy is taken after the call has its own.
 */

/** @typedef {import("./frames.js").RawMessage} RawMessage */

/**
 * Receives what crosses a connection, and how it ends; no method throws or waits.
 *
 * @typedef {object} Tap
 * @property {(data: RawMessage) => void} received
 * @property {(data: RawMessage) => void} sent
 * @property {(isClean: boolean, byApp?: boolean) => void} closed
 * @property {(error: unknown) => void} failed a message could not be copied
 */

/**
 * A connection as `ws`, browsers and WebRTC have it.
 *
 * @typedef {object} Socket
 * @property {(type: string, listener: (event: any) => void) => void} addEventListener
 * @property {(...data: any[]) => any} send
 * @property {(...why: any[]) => any} close
 * @property {(() => any)} [terminate]
 * @property {number | string} readyState
 */

/** Close codes after which the other side is not expected back. */
const CLEAN_CODES = [1000, 1001, 1005];
const OPEN = [1, "open"];

/**
 * The dialect that a connection cannot but speak.
 *
 * @param {any} connection
 * @returns {string | undefined}
 */
export function certainDialect(connection) {
  return isRealtime(connection) ? "openai-realtime" : undefined;
}

/**
 * Whether this is openai's `OpenAIRealtimeWS` or `OpenAIRealtimeWebSocket`.
 *
 * @param {any} connection
 * @returns {boolean}
 */
function isRealtime(connection) {
  return !isSocket(connection) && isSocket(connection?.socket) && typeof connection.send === "function";
}

/**
 * Copy all that passes a connection. Throws `TypeError` for what is not such a connection.
 *
 * @param {any} connection
 * @param {Tap} tap
 */
export function wrap(connection, tap) {
  if (isRealtime(connection)) {
    followSocket(connection, tap);
  } else if (isSocket(connection)) {
    wrapSocket(connection, tap);
  } else {
    const name = connection?.constructor?.name ?? typeof connection;
    throw new TypeError(
      "a tee goes around a socket of ws or of a browser, an RTCDataChannel, or openai's OpenAIRealtimeWS or " +
        `OpenAIRealtimeWebSocket; this is a ${name}`,
    );
  }
}

/**
 * @param {any} connection
 * @returns {connection is Socket}
 */
function isSocket(connection) {
  const methods = [connection?.addEventListener, connection?.send, connection?.close];
  return methods.every((method) => typeof method === "function") && "readyState" in connection;
}

/**
 * Copy all that passes the sockets of openai's SDK, which puts another in the place of one that was lost.
 *
 * @param {{socket: Socket}} connection
 * @param {Tap} tap
 */
function followSocket(connection, tap) {
  let socket = connection.socket;
  wrapSocket(socket, tap);
  replace(connection, "socket", {
    get: () => socket,
    set(next) {
      socket = next;
      try {
        wrapSocket(next, tap);
      } catch (error) {
        tap.failed(error);
      }
    },
  });
}

/**
 * @param {Socket} socket
 * @param {Tap} tap
 */
function wrapSocket(socket, tap) {
  const { send, close, terminate } = socket;
  let hasFailed = false;
  /** @type {RawMessage[]} */
  let pieces = [];
  replace(socket, "send", {
    /**
     * @param {any} data
     * @param {any[]} given
     */
    value(data, ...given) {
      const wasOpen = OPEN.includes(socket.readyState);
      const piece = wasOpen ? heldFor(data) : undefined;
      const result = Reflect.apply(send, socket, [data, ...given]);
      if (piece !== undefined) {
        pieces.push(piece);
        if (given[0]?.fin !== false) {
          const whole = pieces;
          pieces = [];
          safely(tap, () => tap.sent(joined(whole)));
        }
      }
      return result;
    },
  });
  for (const [name, method] of Object.entries({ close, terminate })) {
    if (typeof method === "function") {
      replace(socket, name, {
        /** @param {any[]} given */
        value(...given) {
          safely(tap, () => tap.closed(true, true));
          return Reflect.apply(method, socket, given);
        },
      });
    }
  }
  socket.addEventListener("message", (event) => safely(tap, () => receive(event.data, tap)));
  if (typeof socket.readyState === "string") {
    // not on a socket of `ws`: an error to which no one listens must still end the program
    socket.addEventListener("error", () => {
      hasFailed = true;
    });
  }
  socket.addEventListener("close", (event) => {
    // a data channel says no code
    const isClean = event.code === undefined ? !hasFailed : CLEAN_CODES.includes(event.code);
    safely(tap, () => tap.closed(isClean));
  });
}

/**
 * @param {any} data as `ws` may give it, in pieces too
 * @param {Tap} tap
 */
function receive(data, tap) {
  tap.received(Array.isArray(data) ? joined(data) : data);
}

/**
 * A message that `ws` gives, or that an app sends with it, in pieces.
 *
 * @param {any[]} pieces
 * @returns {RawMessage}
 */
function joined(pieces) {
  if (pieces.length === 1) {
    return pieces[0];
  }
  if (pieces.every((piece) => typeof piece === "string")) {
    return pieces.join("");
  }
  const parts = pieces.map(bytesOf);
  const whole = new Uint8Array(parts.reduce((size, part) => size + part.byteLength, 0));
  let place = 0;
  for (const part of parts) {
    whole.set(part, place);
    place += part.byteLength;
  }
  return whole;
}

/**
 * @param {string | ArrayBuffer | ArrayBufferView} piece
 * @returns {Uint8Array}
 */
function bytesOf(piece) {
  if (typeof piece === "string") {
    return new TextEncoder().encode(piece);
  }
  return ArrayBuffer.isView(piece)
    ? new Uint8Array(piece.buffer, piece.byteOffset, piece.byteLength)
    : new Uint8Array(piece);
}

/**
 * What is copied of what is sent; `ws` makes texts of other values.
 *
 * @param {any} data
 * @returns {RawMessage}
 */
function heldFor(data) {
  const isMessage = ArrayBuffer.isView(data) || data instanceof ArrayBuffer;
  return isMessage || (typeof Blob !== "undefined" && data instanceof Blob) ? data : String(data);
}

/**
 * Put another method in the place of one. Throws `TypeError`.
 *
 * @param {object} connection
 * @param {string} name
 * @param {PropertyDescriptor} property
 */
function replace(connection, name, property) {
  try {
    const isMethod = "value" in property;
    Object.defineProperty(connection, name, { ...property, configurable: true, ...(isMethod ? { writable: true } : {}) });
  } catch {
    const kind = connection.constructor.name;
    throw new TypeError(`a ${kind} that lets nothing be changed cannot have a tee`);
  }
}

/**
 * Copy a message, or lose the copy: the call continues.
 *
 * @param {Tap} tap
 * @param {() => void} onMessage
 */
function safely(tap, onMessage) {
  try {
    onMessage();
  } catch (error) {
    tap.failed(error);
  }
}
