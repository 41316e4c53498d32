// @ts-check
/** Small parts of all pages. Everything that they show goes through text nodes. */
import { duration, moment } from "../core/format.js";
import { bindings } from "../core/keys.js";
import { now } from "../core/store.js";
import { html, signal, useEffect, useRef } from "../core/ui.js";

/** @typedef {import("../core/access.js").Access} Access */

/** The state of a cluster with its mark. @param {{state: import("../core/cluster.js").State}} props */
export function StateBadge({ state }) {
  return html`<span class="badge" data-state=${state} data-testid="state">${state}</span>`;
}

/** Time since `at` (milliseconds), kept current; the tooltip is the moment. @param {{at: number, none?: string}} props */
export function Ago({ at, none = "–" }) {
  if (!Number.isFinite(at)) return html`<span class="muted">${none}</span>`;
  return html`<time title=${moment(at)} dateTime=${new Date(at).toISOString()}>${duration(now.value - at)}</time>`;
}

/**
 * A button that follows `access`: without it the button is grey and says why.
 * `kind`: "", "primary" or "danger". It stays focusable while it is grey, so that the reason can be read.
 * @param {{children?: any, onClick?: (event: Event) => void, access?: Access, kind?: string, disabled?: string, testid?: string, title?: string, label?: string, pressed?: boolean}} props
 * `disabled`: another reason why it cannot be used now
 */
export function Button({ children, onClick, access, kind = "", disabled = "", testid, title, label, pressed }) {
  const why = disabled || (access && !access.allowed ? access.reason : "");
  return html`<button
    type="button"
    class=${`button ${kind}`}
    aria-disabled=${why ? "true" : undefined}
    aria-pressed=${pressed === undefined ? undefined : String(pressed)}
    aria-label=${label ? (why ? `${label}. ${why}` : label) : undefined}
    title=${why || title}
    data-testid=${testid}
    onClick=${(/** @type {Event} */ event) => !why && onClick?.(event)}
  >${children}</button>`;
}

/** @type {import("../core/ui.js").Signal<{text: string, bad: boolean, id: number} | null>} */
const notice = signal(/** @type {{text: string, bad: boolean, id: number} | null} */ (null));

/** Shows a short message at the bottom of the page. @param {string} text @param {boolean} [bad] */
export function notify(text, bad = false) {
  const id = Date.now();
  notice.value = { text, bad, id };
  setTimeout(() => notice.value?.id === id && (notice.value = null), bad ? 12_000 : 4000);
}

export function Notices() {
  const shown = notice.value;
  return html`<div class="notices" role="status" aria-live="polite">${shown && html`<p class=${shown.bad ? "notice bad" : "notice"}>${shown.text}</p>`}</div>`;
}

/** Copies a text. @param {string} text */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    notify("Copied.");
  } catch {
    notify("The browser does not permit to copy. Select the text instead.", true);
  }
}

/** A command to copy. @param {{text: string, label?: string}} props */
export function Command({ text, label = "Copy" }) {
  return html`<span class="command"><code>${text}</code><button type="button" class="button small" aria-label=${`${label}: ${text}`} onClick=${() => copy(text)}>${label}</button></span>`;
}

/**
 * A modal dialog, open while it is rendered. Escape and a click on the backdrop close it.
 * @param {{title: string, onClose: () => void, children?: any, testid?: string, wide?: boolean}} props
 */
export function Dialog({ title, onClose, children, testid, wide = false }) {
  const place = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    const dialog = place.current;
    if (dialog && !dialog.open) dialog.showModal();
    return () => dialog?.close();
  }, []);
  const close = (/** @type {Event} */ event) => event.target === place.current && onClose();
  return html`<dialog ref=${place} class=${wide ? "wide" : ""} aria-label=${title} data-testid=${testid} onClose=${() => place.current && onClose()} onClick=${close}>
    <header><h2>${title}</h2><button type="button" class="button small" aria-label="Close" onClick=${onClose}>✕</button></header>
    <div class="body">${children}</div>
  </dialog>`;
}

/** The list of all keys that work now. @param {{onClose: () => void}} props */
export function KeyHelp({ onClose }) {
  return html`<${Dialog} title="Keyboard" onClose=${onClose} testid="keys">
    <dl class="keys">${bindings.value.map((each) => html`<div key=${each.keys}><dt>${each.keys.split(" ").map((key) => html`<kbd>${key}</kbd> `)}</dt><dd>${each.label}</dd></div>`)}</dl>
  <//>`;
}

/** A message in place of content, such as for an empty table. @param {{title: string, children?: any}} props */
export function Empty({ title, children }) {
  return html`<div class="empty"><h2>${title}</h2>${children}</div>`;
}
