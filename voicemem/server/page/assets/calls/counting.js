// @ts-check
/** How many calls there are, and how many of them are live, where not all of them are shown. */
import { get } from "../base/api.js";
import { parameters } from "./filters.js";

/** @param {URLSearchParams} query the filters @returns {Promise<{total: number | null, live: number | null}>} */
export async function counted(query) {
  const asked = { ...parameters(query), limit: 1, count: true };
  const number = (/** @type {string | null} */ state) => get("/v1/sessions", { ...asked, state }).then((answer) => answer.total);
  const [total, live] = await Promise.all([number(asked.state), asked.state === "ended" ? 0 : number("running")]);
  return { total, live };
}
