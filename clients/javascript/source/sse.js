/** Server-sent events (https://html.spec.whatwg.org, 9.2), read from pieces of text. */

/** @typedef {{data: string | null, event: string, id: string | null}} SseEvent */

/** An event, or a single line, is longer than its reader takes. */
export class TooLong extends Error {}

/** Turns text, in whatever pieces it comes, into events of at most `maxLength` characters of data. */
export class Decoder {
  /** @param {number} maxLength */
  constructor(maxLength) {
    this.maxLength = maxLength;
    /** @type {string[]} The beginning of a line whose end has not come, in pieces. */
    this.unfinished = [];
    this.unfinishedLength = 0;
    /** @type {string[]} */
    this.lines = [];
    this.length = 0;
    this.event = "";
    /** @type {string | null} */
    this.id = null;
  }

  /**
   * The events that end in this piece. Throws `TooLong`.
   * @param {string} piece
   * @returns {Generator<SseEvent, void>}
   */
  *feed(piece) {
    const pieces = piece.split("\n");
    const rest = /** @type {string} */ (pieces.pop());
    for (const text of pieces) {
      const line = [...this.unfinished, text].join("").replace(/\r$/, "");
      this.unfinished = [];
      this.unfinishedLength = 0;
      if (line) this.addLine(line);
      else if (this.lines.length || this.event || this.id !== null) yield this.endEvent();
    }
    if (rest) this.unfinished.push(rest);
    this.unfinishedLength += rest.length;
    this.checkLength(this.unfinishedLength);
  }

  /**
   * Note a field. Comments, `retry` and unknown fields are ignored.
   * @param {string} line
   */
  addLine(line) {
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") {
      this.checkLength(value.length + 1);
      this.lines.push(value);
      this.length += value.length + 1; // an empty line costs its reader too
    } else if (name === "event") {
      this.event = value;
    } else if (name === "id" && !value.includes("\0")) {
      this.id = value;
    }
  }

  /** @returns {SseEvent} */
  endEvent() {
    const ended = { data: this.lines.length ? this.lines.join("\n") : null, event: this.event, id: this.id };
    this.lines = [];
    this.length = 0;
    this.event = "";
    this.id = null;
    return ended;
  }

  /** @param {number} more */
  checkLength(more) {
    if (this.length + more > this.maxLength) throw new TooLong();
  }
}
