// The id of a session, from the vendor's; `voicemem/dialects/dialect.py` makes the same.

const PLAIN = /^(?!\.\.?$)[A-Za-z0-9._:-]{1,128}$/;
const NOT_IN_IDS = /[^A-Za-z0-9._:-]/gu;
const DIGEST_DIGITS = 32;
const DIGESTED = /\.\.[0-9a-f]{32}$/;
const SHOWN = 128 - "..".length - DIGEST_DIGITS;

/**
 * The id of a session, from the vendor's: no two of the vendor's give the same. One that a session may not have is cut
 * and ends with a digest of the whole; so does one that looks like that itself.
 *
 * @param {string} said
 * @returns {string}
 */
export function sessionIdOf(said) {
  if (PLAIN.test(said) && !DIGESTED.test(said)) {
    return said;
  }
  return `${said.replace(NOT_IN_IDS, "-").slice(0, SHOWN)}..${sha256(said).slice(0, DIGEST_DIGITS)}`;
}

/** @type {number[]} */
const PRIMES = [];
for (let number = 2; PRIMES.length < 64; number += 1) {
  if (PRIMES.every((prime) => number % prime !== 0)) {
    PRIMES.push(number);
  }
}
const CONSTANTS = PRIMES.map((prime) => fractionBits(Math.cbrt(prime)));
const BEGIN = PRIMES.slice(0, 8).map((prime) => fractionBits(Math.sqrt(prime)));

/**
 * The first 32 bits of the fraction of a number.
 *
 * @param {number} number
 */
function fractionBits(number) {
  return Math.floor((number % 1) * 2 ** 32) | 0;
}

/**
 * SHA-256 of a text (FIPS 180-4), in hex: what browsers have for it makes its caller wait.
 *
 * @param {string} text
 * @returns {string}
 */
function sha256(text) {
  const bytes = new TextEncoder().encode(text);
  const padded = new Uint8Array((((bytes.length + 8) >> 6) + 1) << 6);
  padded.set(bytes);
  padded[bytes.length] = 0x80;
  const view = new DataView(padded.buffer);
  view.setUint32(padded.length - 4, bytes.length * 8);
  let state = BEGIN;
  for (let offset = 0; offset < padded.length; offset += 64) {
    const after = digestBlock(state, view, offset);
    state = state.map((word, index) => (word + after[index]) | 0);
  }
  return state.map((word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
}

/**
 * @param {number[]} state
 * @param {DataView} view
 * @param {number} offset of the block
 */
function digestBlock(state, view, offset) {
  /** @type {number[]} */
  const words = [];
  let [a, b, c, d, e, f, g, h] = state;
  for (let round = 0; round < 64; round += 1) {
    if (round < 16) {
      words.push(view.getInt32(offset + round * 4));
    } else {
      const [w15, w2] = [words[round - 15], words[round - 2]];
      const s0 = turned(w15, 7) ^ turned(w15, 18) ^ (w15 >>> 3);
      const s1 = turned(w2, 17) ^ turned(w2, 19) ^ (w2 >>> 10);
      words.push((words[round - 16] + s0 + words[round - 7] + s1) | 0);
    }
    const s1 = turned(e, 6) ^ turned(e, 11) ^ turned(e, 25);
    const t1 = (h + s1 + ((e & f) ^ (~e & g)) + CONSTANTS[round] + words[round]) | 0;
    const s0 = turned(a, 2) ^ turned(a, 13) ^ turned(a, 22);
    const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    [a, b, c, d, e, f, g, h] = [(t1 + t2) | 0, a, b, c, (d + t1) | 0, e, f, g];
  }
  return [a, b, c, d, e, f, g, h];
}

/**
 * @param {number} word
 * @param {number} bits
 */
function turned(word, bits) {
  return (word >>> bits) | (word << (32 - bits));
}
