// @ts-check
/** Dark and light: the system's choice, until the user chooses. */
import { signal } from "./ui.js";

const KEPT = "muster-console-theme";
/** @typedef {"auto" | "light" | "dark"} Theme */

/** @type {import("./ui.js").Signal<Theme>} */
export const theme = signal(/** @type {Theme} */ (localStorage.getItem(KEPT) ?? "auto"));

/** @param {Theme} chosen */
export function setTheme(chosen) {
  theme.value = chosen;
  if (chosen === "auto") localStorage.removeItem(KEPT);
  else localStorage.setItem(KEPT, chosen);
  showTheme();
}

export function showTheme() {
  if (theme.value === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
}
