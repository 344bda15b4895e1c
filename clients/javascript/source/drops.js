/** Events that `record` could not take: counted, warned of, and reported to the program. */

/** @typedef {import("./errors.js").ClientError} ClientError */

/** Counts the dropped events of a client by the code of their error. */
export class DroppedEvents {
  /** @param {Pick<import("./options.js").Options, "onDropped" | "warn">} options */
  constructor(options) {
    this.options = options;
    /** @type {Map<string, number>} */
    this.counts = new Map();
  }

  /**
   * Count an event. Never throws, since this runs where audio is processed.
   * @param {string} sessionId
   * @param {string} producer
   * @param {ClientError} error
   */
  report(sessionId, producer, error) {
    const count = (this.counts.get(error.code) ?? 0) + 1;
    this.counts.set(error.code, count);
    try {
      // The 1st, 2nd, 4th, 8th …: an outage must not fill the log.
      if (Number.isInteger(Math.log2(count))) {
        const which = `session ${sessionId}, producer ${producer}: an event was not taken`;
        this.options.warn(`${which}, number ${count} with this code: ${error.message}`);
      }
      this.options.onDropped?.(sessionId, producer, error);
    } catch (mistake) {
      // a defect of the program's own must not stop its audio
      console.error("onDropped has failed:", mistake);
    }
  }
}
