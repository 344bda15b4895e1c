// @ts-check
/** The player of a call's recording, which is somewhere else: nothing of it is loaded before one plays it. */
import { h } from "../base/dom.js";

const NEAR_MS = 60_000; // between the beginning of a session and its first word

/** @param {HTMLElement} container @param {import("./live.js").Call} call @param {(time: number) => void} moved called with the moment that is heard */
export function player(container, call, moved) {
  const url = call.session.config?.recording;
  if (!url) return { seek() {}, draw() {}, close() {} };
  const audio = h("audio", { controls: true, preload: "none", src: url, "aria-label": "Recording" });
  const error = h("p", { class: "soft", role: "status" });
  container.append(h("div", { class: "player" }, audio, error));
  let begin = 0;
  let frame = 0;
  let target = NaN;
  const tell = () => {
    moved(begin + 1000 * audio.currentTime);
    if (!audio.paused) frame = requestAnimationFrame(tell);
  };
  const jump = () => {
    if (Number.isFinite(target)) audio.currentTime = target;
    target = NaN;
  };
  audio.addEventListener("loadedmetadata", jump);
  audio.addEventListener("play", tell);
  audio.addEventListener("seeked", tell);
  audio.addEventListener("error", () => (error.textContent = "The recording cannot be played: its URL gives no audio that this browser can play."));
  return {
    /** Hear from this moment on. @param {number} time */
    seek(time) {
      target = Math.max(0, (time - begin) / 1000);
      if (audio.readyState) jump();
      else moved(time);
    },
    /** The recording begins with the session, or with the first word where the call has another clock. @param {number} first */
    draw(first) {
      const { started_at: started } = call.session;
      begin = started <= first && first - started < NEAR_MS ? started : first;
    },
    close() {
      cancelAnimationFrame(frame);
      audio.pause();
      audio.removeAttribute("src");
    },
  };
}
