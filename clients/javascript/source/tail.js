/** Reads a live tail: server-sent events, continued after every lost connection. */
import { RequestRefused, Unreachable, isTransient } from "./errors.js";
import { Backoff } from "./options.js";
import { Decoder, TooLong } from "./sse.js";
import { sleep } from "./waiting.js";

const CONNECT_TIMEOUT_MS = 10_000;
/** After so long without a byte the connection is lost; the server sends at least a comment every 15 s. */
const SILENCE_MS = 45_000;
const NO_CONTENT = 204;
/** Of one event, so that a server, or what poses as one, cannot fill the memory. */
const MAX_EVENT_LENGTH = 64 * 1024 * 1024;

/**
 * One event of a tail, its data decoded; a reader continues after its id.
 * @typedef {{lastEventId: string | null, event: string, data: Record<string, any>}} TailEvent
 */

export class TailReader {
  /**
   * @param {import("./transport/rest.js").RestClient} rest
   * @param {string} path
   * @param {Record<string, string>} query
   * @param {{isOfOneSession: boolean, after?: string | undefined, signal?: AbortSignal | undefined}} how the tail of one
   *   session ends with it
   */
  constructor(rest, path, query, { isOfOneSession, after, signal }) {
    this.rest = rest;
    this.path = path;
    this.query = query;
    this.isOfOneSession = isOfOneSession;
    this.signal = signal;
    this.backoff = new Backoff(rest.options);
    /** @type {string | null} */
    this.lastEventId = after ?? null;
    /** Whether the server has ever answered. */
    this.everConnected = false;
  }

  /**
   * The events of the tail, each once, until it is over.
   *
   * Throws `RequestRefused`, `Closed`, and `Unreachable` if the first attempt gets no answer; later ones are repeated.
   * @returns {AsyncGenerator<TailEvent, void>}
   */
  async *events() {
    while (!this.signal?.aborted) {
      try {
        for await (const event of this.readOnce()) {
          yield event;
          if (this.isOfOneSession && event.event === "end") return;
        }
      } catch (error) {
        if (this.signal?.aborted || this.isOver(error)) return;
        if (!this.everConnected || !mayPass(error)) throw error;
      }
      await sleep(this.backoff.nextMs(), this.signal);
    }
  }

  /**
   * The events of one connection. Throws `RequestRefused`, also when the server cuts the tail.
   * @returns {AsyncGenerator<TailEvent, void>}
   */
  async *readOnce() {
    /** @type {Record<string, string>} */
    const headers = { Accept: "text/event-stream" };
    if (this.lastEventId !== null) headers["Last-Event-ID"] = this.lastEventId;
    const decoder = new Decoder(MAX_EVENT_LENGTH);
    const onAnswer = () => {
      this.everConnected = true;
      this.backoff.reset();
    };
    const how = { query: this.query, headers, signal: this.signal, timeoutMs: CONNECT_TIMEOUT_MS, silenceMs: SILENCE_MS };
    for await (const piece of this.rest.pieces(this.path, { ...how, onAnswer })) {
      for (const event of decoded(decoder, piece)) {
        this.lastEventId = event.lastEventId ?? this.lastEventId;
        if (event.event === "goaway" || event.event === "error") {
          throw new RequestRefused(String(event.data.reason), String(event.data.detail));
        }
        if (event.event) yield event; // one without a name only carries the position of the tail
      }
    }
  }

  /**
   * Whether nothing more comes: the service says so with an empty answer.
   * @param {unknown} error
   */
  isOver(error) {
    return error instanceof RequestRefused && error.status === NO_CONTENT;
  }
}

/**
 * @param {Decoder} decoder
 * @param {string} piece
 * @returns {Generator<TailEvent, void>}
 */
function* decoded(decoder, piece) {
  try {
    for (const { id, event, data } of decoder.feed(piece)) {
      yield { lastEventId: id, event, data: JSON.parse(data ?? "{}") };
    }
  } catch (error) {
    if (error instanceof TooLong) throw new RequestRefused("too_big", "An event of the tail is larger than 64 MiB.");
    throw error;
  }
}

/** @param {unknown} error */
function mayPass(error) {
  return error instanceof Unreachable || (error instanceof RequestRefused && isTransient(error.code, error.status));
}
