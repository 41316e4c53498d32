// @ts-check
/** Blocks of the pages Cluster, Inbox and Time: sections, facts, tables, and data that is loaded. */
import { ApiError } from "../core/api.js";
import { html, useRequest, useState } from "../core/ui.js";

/** Characters that control the direction of text, or that nobody sees. */
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

/** @param {unknown} value @returns {any} a view as it is; a text without characters that could make it look like another one */
export function shown(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "object") return value;
  return String(value).replace(UNSEEN, (each) => (each === "\n" ? " " : `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`));
}

/** @param {unknown} error @returns {string} its message, for people */
export function messageOf(error) {
  return error instanceof Error ? error.message : String(error);
}

/**
 * Loads something again whenever an input changes; the earlier value stays until then.
 * @template T @param {(stop: AbortSignal) => Promise<T>} load @param {any[]} inputs
 * @returns {{value: T | null, problem: string, missing: boolean}} `missing`: the hub has no such object
 */
export function useLoaded(load, inputs) {
  const [found, set] = useState(/** @type {{value: T | null, problem: string, missing: boolean}} */ ({ value: null, problem: "", missing: false }));
  useRequest(async (stop) => {
    try {
      const value = await load(stop);
      if (!stop.aborted) set({ value, problem: "", missing: false });
    } catch (error) {
      if (stop.aborted) return;
      const missing = error instanceof ApiError && error.code === 404;
      set((old) => ({ value: missing ? null : old.value, problem: messageOf(error), missing }));
    }
  }, inputs);
  return found;
}

/** @param {{title: string, count?: number, children?: any, testid?: string, aside?: any}} props */
export function Section({ title, count, children, testid, aside }) {
  return html`<section class="block" data-testid=${testid}>
    <header><h2>${title}</h2>${count !== undefined && html`<span class="muted">${count}</span>`}<span class="grow"></span>${aside}</header>
    ${children}
  </section>`;
}

/** Names and values; empty values are left out. @param {{facts: [string, any][]}} props */
export function Facts({ facts }) {
  const given = facts.filter(([, value]) => value !== undefined && value !== null && value !== "" && value !== false && value.length !== 0);
  return html`<dl class="facts">${given.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${shown(value)}</dd></div>`)}</dl>`;
}

/** A table, or a sentence if it is empty. @param {{label: string, titles: string[], rows: any[][], none?: string}} props */
export function Rows({ label, titles, rows, none = "None." }) {
  if (!rows.length) return html`<p class="muted pad">${none}</p>`;
  return html`<div class="scroll" role="region" aria-label=${label} tabIndex=${0}><table class="plain">
    <thead><tr>${titles.map((title) => html`<th scope="col">${title}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${row.map((cell) => html`<td>${shown(cell)}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

/** Why something is not shown. @param {{text: string}} props */
export function Problem({ text }) {
  return text ? html`<p class="problem pad" role="alert">${text}</p>` : null;
}

/** @param {{label: string, children?: any}} props */
export function Field({ label, children }) {
  return html`<label class="field"><span>${label}</span>${children}</label>`;
}
