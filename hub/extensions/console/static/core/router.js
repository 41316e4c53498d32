// @ts-check
/** The view is in the URL's fragment: `#/fleet?where=…`, `#/cluster/edge1?at=…`. */
import { computed, signal } from "./ui.js";

/** @typedef {{page: string, args: string[], params: Record<string, string>}} Route */

/** @param {string} hash @returns {Route} */
export function parseRoute(hash) {
  const text = hash.replace(/^#\/?/, "");
  const [path = "", query = ""] = split(text, "?");
  const [page = "", ...args] = path.split("/").map(decode).filter(Boolean);
  return { page: page || "fleet", args, params: Object.fromEntries(new URLSearchParams(query)) };
}

/** @param {string} text @param {string} mark */
function split(text, mark) {
  const at = text.indexOf(mark);
  return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + 1)];
}

/** @param {string} text */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/**
 * The link to a page; empty parameters are left out.
 * @param {string} page @param {string[]} [args] @param {Record<string, string | undefined>} [params] @returns {string}
 */
export function href(page, args = [], params = {}) {
  const given = Object.entries(params).filter(([, value]) => value);
  const query = new URLSearchParams(/** @type {[string, string][]} */ (given)).toString();
  return `#/${[page, ...args].map(encodeURIComponent).join("/")}${query ? `?${query}` : ""}`;
}

/** The present route. Pages read their parameters from it and nowhere else. */
export const route = signal(parseRoute(location.hash));
addEventListener("hashchange", () => {
  route.value = parseRoute(location.hash);
});

/** @type {Map<string, import("./ui.js").Signal<string>>} */
const known = new Map();

/** A parameter of the present page; a component that reads only it is not drawn again when others change. @param {string} name */
export function param(name) {
  const found = known.get(name) ?? computed(() => route.value.params[name] ?? "");
  known.set(name, found);
  return found.value;
}

/** @param {string} page @param {string[]} [args] @param {Record<string, string | undefined>} [params] */
export function navigate(page, args, params) {
  location.hash = href(page, args, params);
}

/** Changes parameters of the present page without a new entry in the browser's history. @param {Record<string, string | undefined>} changes */
export function setParams(changes) {
  const { page, args, params } = route.value;
  history.replaceState(null, "", href(page, args, { ...params, ...changes }));
  route.value = parseRoute(location.hash);
}

const LEFT = "muster-console-view";

/** Goes to the page that signs in. The tab shows the present view after it. */
export function signIn() {
  sessionStorage.setItem(LEFT, location.hash);
  location.assign("login");
}

/** Shows the view from which this tab went to sign in, if there is one. */
export function returnToView() {
  const left = sessionStorage.getItem(LEFT);
  sessionStorage.removeItem(LEFT);
  if (!left || location.hash) return;
  history.replaceState(null, "", left);
  route.value = parseRoute(left);
}

const KEPT = "muster-console-secret";

/** Takes `secret` out of the address at once and keeps it for this tab. @returns {string} the secret; "": there is none */
export function takeSecret() {
  const { page, args, params } = parseRoute(location.hash.replace(/^#secret=/, "#/?secret="));
  const { secret, ...rest } = params;
  if (secret) {
    sessionStorage.setItem(KEPT, secret);
    history.replaceState(null, "", href(page, args, rest));
    route.value = parseRoute(location.hash);
  }
  return sessionStorage.getItem(KEPT) ?? "";
}
