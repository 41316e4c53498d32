// @ts-check
/** Preact, htm and signals under one name, with the types that the pages use. */
import { Component as BaseComponent, Fragment, h, render } from "../vendor/preact.js";
import * as hooks from "../vendor/hooks.js";
import * as signals from "../vendor/signals.js";
import htm from "../vendor/htm.js";

/** @typedef {any} View What `html` returns. */
/** @template T @typedef {{value: T, peek(): T, subscribe(run: (value: T) => void): () => void}} Signal */

/** @type {(strings: TemplateStringsArray, ...values: any[]) => View} Texts in it become text nodes, never markup. */
export const html = /** @type {any} */ (htm).bind(h);
/** @type {new (props: any) => {props: any, state: any, setState(state: any): void, forceUpdate(): void}} */
export const Component = /** @type {any} */ (BaseComponent);
export { Fragment, h, render };

/** @type {(run: () => void | (() => void), inputs?: any[]) => void} */
export const useEffect = /** @type {any} */ (hooks.useEffect);
/** @type {(run: () => void | (() => void), inputs?: any[]) => void} */
export const useLayoutEffect = /** @type {any} */ (hooks.useLayoutEffect);
/** @type {<T>(make: () => T, inputs: any[]) => T} */
export const useMemo = /** @type {any} */ (hooks.useMemo);
/** @type {<T>(first: T) => {current: T}} */
export const useRef = /** @type {any} */ (hooks.useRef);
/** @type {<T>(first: T | (() => T)) => [T, (next: T | ((old: T) => T)) => void]} */
export const useState = /** @type {any} */ (hooks.useState);

/** @type {<T>(first: T) => Signal<T>} */
export const signal = /** @type {any} */ (signals.signal);
/** @type {<T>(derive: () => T) => Signal<T>} */
export const computed = /** @type {any} */ (signals.computed);
/** @type {(run: () => void | (() => void)) => () => void} */
export const effect = /** @type {any} */ (signals.effect);
/** @type {<T>(run: () => T) => T} */
export const batch = /** @type {any} */ (signals.batch);
/** @type {<T>(run: () => T) => T} */
export const untracked = /** @type {any} */ (signals.untracked);
/** @type {<T>(first: T) => Signal<T>} */
export const useSignal = /** @type {any} */ (signals.useSignal);
/** @type {<T>(derive: () => T) => Signal<T>} */
export const useComputed = /** @type {any} */ (signals.useComputed);

/** @type {(run: (stop: AbortSignal) => Promise<void>, inputs: any[]) => void} Runs a request; a later one or the end of the component aborts it. */
export function useRequest(run, inputs) {
  useEffect(() => {
    const stop = new AbortController();
    run(stop.signal).catch((error) => {
      if (!stop.signal.aborted) throw error;
    });
    return () => stop.abort();
  }, inputs);
}
