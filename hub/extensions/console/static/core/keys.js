// @ts-check
/** The keyboard: pages register bindings while they are shown; `?` lists them. */
import { signal, useEffect } from "./ui.js";

/** @typedef {{keys: string, label: string, run: (event: KeyboardEvent) => void}} Binding `keys`: such as `j` or `g f` */

/** @type {import("./ui.js").Signal<Binding[]>} */
export const bindings = signal(/** @type {Binding[]} */ ([]));
const PAUSE = 1200;
let prefix = "";
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;

/** @param {Binding[]} added registered while the component is shown @param {any[]} inputs as of useEffect */
export function useKeys(added, inputs) {
  useEffect(() => {
    bindings.value = [...bindings.peek(), ...added];
    return () => {
      bindings.value = bindings.peek().filter((each) => !added.includes(each));
    };
  }, inputs);
}

/** @param {EventTarget | null} target */
function takesText(target) {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) && /** @type {any} */ (target).type !== "checkbox";
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || takesText(event.target) || document.querySelector("dialog[open]")) return;
  const typed = prefix ? `${prefix} ${event.key}` : event.key;
  const all = bindings.peek();
  // the newest binding wins: a page's before the application's
  const found = all.findLast((each) => each.keys === typed) ?? all.findLast((each) => each.keys === event.key);
  clearTimeout(timer);
  prefix = "";
  if (found) {
    event.preventDefault();
    found.run(event);
  } else if (all.some((each) => each.keys.startsWith(`${typed} `))) {
    prefix = typed;
    timer = setTimeout(() => (prefix = ""), PAUSE);
  }
});
