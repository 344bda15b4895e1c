// @ts-check
/** The rows of the list that change while one looks at it. */
import { get } from "../base/api.js";

const EVERY_MS = 2000;

/**
 * @param {Record<string, any>} asked the filters of the list
 * @param {{changed: (row: any) => void, gone: (id: string) => void, lost: (isLost: boolean) => void}} tell
 */
export function followCalls(asked, { changed, lost }) {
  const look = async () => {
    if (document.hidden) return;
    const answer = await get("/v1/sessions", asked).catch(() => null);
    lost(answer === null);
    answer?.sessions.reverse().forEach(changed);
  };
  const timer = setInterval(look, EVERY_MS);
  return { close: () => clearInterval(timer) };
}
