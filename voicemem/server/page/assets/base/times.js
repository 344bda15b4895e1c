// @ts-check
/** Times as people read them. All of them take Unix ms or a length in ms; what is not known is a dash. */

const NOTHING = "–";
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const SECONDS = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const YEAR = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });
/** @type {[number, string][]} */
const PAST = [
  [86_400_000, "day"],
  [3_600_000, "hour"],
  [60_000, "minute"],
];

/** @param {any} ms */
const isKnown = (ms) => Number.isFinite(ms) && Math.abs(ms) < 8e15;
/** @param {number} number */
const two = (number) => String(number).padStart(2, "0");

/** 14:30 @param {any} ms */
export const clock = (ms) => (isKnown(ms) ? CLOCK.format(ms) : NOTHING);
/** 14:30:05 @param {any} ms */
export const seconds = (ms) => (isKnown(ms) ? SECONDS.format(ms) : NOTHING);
/** 22 Nov, with the year of other years @param {any} ms */
export const day = (ms) => {
  if (!isKnown(ms)) return NOTHING;
  return (new Date(ms).getFullYear() === new Date().getFullYear() ? DAY : YEAR).format(ms);
};
/** 14:30 today, and 22 Nov, 14:30 on other days @param {any} ms */
export const moment = (ms) => (isToday(ms) ? clock(ms) : isKnown(ms) ? `${day(ms)}, ${clock(ms)}` : NOTHING);
/** 22 Nov, 14:30:05 @param {any} ms */
export const full = (ms) => (isKnown(ms) ? `${day(ms)}, ${seconds(ms)}` : NOTHING);

/** @param {any} ms */
export const isToday = (ms) => isKnown(ms) && new Date(ms).toDateString() === new Date().toDateString();

/** 0:48, 1:02:03 @param {any} ms */
export function length(ms) {
  if (!isKnown(ms)) return NOTHING;
  const all = Math.max(0, Math.floor(ms / 1000));
  const [hours, minutes] = [Math.floor(all / 3600), Math.floor(all / 60) % 60];
  return hours ? `${hours}:${two(minutes)}:${two(all % 60)}` : `${minutes}:${two(all % 60)}`;
}

/** "640 ms", "1.65 s", "2:05 min" @param {any} ms */
export function milliseconds(ms) {
  if (!isKnown(ms)) return NOTHING;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return ms < 60_000 ? `${(ms / 1000).toFixed(2)} s` : `${length(ms)} min`;
}

/** "about 0.4 s", "about 2 s", "about 3 min" @param {any} ms */
export function about(ms) {
  if (!isKnown(ms)) return NOTHING;
  if (ms < 950) return `about ${Math.round(ms / 100) / 10} s`;
  return ms < 90_000 ? `about ${Math.round(ms / 1000)} s` : `about ${Math.round(ms / 60_000)} min`;
}

/** "just now", "4 minutes ago", "in 4 minutes" for a time that has not come @param {any} ms @param {number} [now] */
export function ago(ms, now = Date.now()) {
  if (!isKnown(ms)) return NOTHING;
  const [span, isPast] = [Math.abs(now - ms), now >= ms];
  const [unit, name] = PAST.find(([size]) => span >= size) ?? [1000, "second"];
  const count = Math.round(span / unit);
  if (name === "second" && count < 5) return isPast ? "just now" : "now";
  const words = `${count} ${name}${count === 1 ? "" : "s"}`;
  return isPast ? `${words} ago` : `in ${words}`;
}
