// @ts-check
/** The rows of the list that change while one looks at it. */
import { follow } from "../base/tail.js";

/**
 * @param {Record<string, any>} asked the filters of the list
 * @param {{changed: (row: any) => void, gone: (id: string) => void, again: () => void, lost: (isLost: boolean) => void}} tell
 */
export function followCalls(asked, { changed, gone, again, lost }) {
  let begins = 0;
  return follow(
    "/v1/sessions",
    asked,
    {
      // Changes during a break are not reported: after it the list is read again.
      reset: () => (begins += 1) > 1 && again(),
      session: changed,
      gone: ({ session_id: id }) => gone(id),
    },
    { onLost: () => lost(true), onBack: () => lost(false) },
  );
}
