/** Waiting: for a while, until something stops it, or for something in bounds. */

/**
 * Wait so long, or until `signal` is aborted.
 * @param {number} ms
 * @param {AbortSignal} [signal]
 * @returns {Promise<void>}
 */
export function sleep(ms, signal) {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const end = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    signal?.addEventListener("abort", end);
  });
}

/**
 * What a promise gives, within so long; otherwise the error of `late` is thrown. Null means for ever.
 * @template Value
 * @param {Promise<Value>} promise
 * @param {number | null} timeoutMs
 * @param {() => Error} late
 * @returns {Promise<Value>}
 */
export async function within(promise, timeoutMs, late) {
  if (timeoutMs === null) return promise;
  /** @type {any} */
  let timer;
  /** @type {Promise<never>} */
  const timeout = new Promise((_, reject) => {
    timer = setTimeout(() => reject(late()), timeoutMs);
  });
  try {
    return await Promise.race([promise, timeout]);
  } finally {
    clearTimeout(timer);
  }
}

/**
 * Something that happens once.
 * @template Value
 */
export class Deferred {
  constructor() {
    this.settled = false;
    /** @type {(value: Value) => void} */
    this.resolve = () => {};
    /** @type {(error: unknown) => void} */
    this.reject = () => {};
    /** @type {Promise<Value>} */
    this.promise = new Promise((resolve, reject) => {
      this.resolve = (value) => this.settle(() => resolve(value));
      this.reject = (error) => this.settle(() => reject(error));
    });
    this.promise.catch(() => {}); // a program that never awaits it must not die of an unhandled rejection
  }

  /** @param {() => void} how */
  settle(how) {
    this.settled = true;
    how();
  }
}
