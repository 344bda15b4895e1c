// @ts-check
/** Light, dark, or as the system has it; the only thing that the page keeps in the browser. */
import { h } from "./dom.js";

const NAME = "voicemem-theme";
const WORDS = { auto: "Theme: auto", light: "Theme: light", dark: "Theme: dark" };
const NEXT = { auto: "light", light: "dark", dark: "auto" };

/** @returns {"auto" | "light" | "dark"} */
function kept() {
  try {
    const name = localStorage.getItem(NAME);
    return name === "light" || name === "dark" ? name : "auto";
  } catch {
    return "auto"; // a browser that keeps nothing
  }
}

/** Use what was chosen. @param {"auto" | "light" | "dark"} theme */
function use(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

export const startTheme = () => use(kept());

/** The button that goes from one to the next. */
export function themeSwitch() {
  const button = h("button", { class: "btn plain", type: "button" }, WORDS[kept()]);
  button.addEventListener("click", () => {
    const theme = /** @type {"auto" | "light" | "dark"} */ (NEXT[kept()]);
    try {
      if (theme === "auto") localStorage.removeItem(NAME);
      else localStorage.setItem(NAME, theme);
    } catch {
      // it holds until the page is loaded again
    }
    use(theme);
    button.textContent = WORDS[theme];
  });
  return button;
}
