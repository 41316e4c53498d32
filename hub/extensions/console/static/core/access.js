// @ts-check
/** What the user may do, by SelfSubjectAccessReview, and by the console's mode. */
import { ApiError, open, post } from "./api.js";
import { signal } from "./ui.js";

/** @typedef {{mode: "off" | "read-only" | "on", version: string, groupSuffix: string, signIn?: boolean}} Config `signIn`: people sign in at this listener */
/** @typedef {{allowed: boolean, reason: string, known: boolean}} Access `reason`: why not, for the tooltip of a grey button */

/** @type {import("./ui.js").Signal<Config>} of `/console/config.json` */
export const config = signal(/** @type {Config} */ ({ mode: "read-only", version: "", groupSuffix: "" }));
/** Name of the user, by SelfSubjectReview. */
export const user = signal("");

/** @type {Map<string, import("./ui.js").Signal<Access>>} */
const known = new Map();
const MEMORY = 60_000;
const READS = new Set(["get", "list", "watch"]);

/**
 * Whether the user may do `verb` (such as `patch`, `create`) to a resource. Asks once a minute at most.
 * A component that reads `.value` is drawn again with the answer.
 * @param {string} verb @param {import("./api.js").Resource} resource @param {string} [name] @param {string} [subresource] @param {string} [namespace]
 * @returns {import("./ui.js").Signal<Access>}
 */
export function can(verb, resource, name = "", subresource = "", namespace = "") {
  const key = [verb, resource.group, resource.name, name, subresource, namespace].join("/");
  let found = known.get(key);
  if (!found) {
    found = signal(/** @type {Access} */ ({ allowed: false, reason: "Asking the hub for your permissions.", known: false }));
    known.set(key, found);
    setTimeout(() => known.delete(key), MEMORY);
    review(found, verb, resource, name, subresource, namespace);
  }
  return found;
}

/**
 * @param {import("./ui.js").Signal<Access>} answer @param {string} verb @param {import("./api.js").Resource} resource
 * @param {string} name @param {string} subresource @param {string} namespace
 */
async function review(answer, verb, { group, version, name: plural }, name, subresource, namespace) {
  if (!READS.has(verb) && config.value.mode !== "on") {
    answer.value = { allowed: false, reason: "This console is read-only (--console=read-only).", known: true };
    return;
  }
  const resourceAttributes = { verb, group, version, resource: plural, name, subresource, namespace };
  try {
    const { status } = await post("apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {
      apiVersion: "authorization.k8s.io/v1",
      kind: "SelfSubjectAccessReview",
      spec: { resourceAttributes },
    });
    const what = `${verb} ${plural}${subresource ? `/${subresource}` : ""}`;
    const reason = status.allowed ? "" : `You may not ${what}${status.reason ? `: ${status.reason}` : "."}`;
    answer.value = { allowed: Boolean(status.allowed), reason, known: true };
  } catch (error) {
    const why = error instanceof ApiError ? error.message : String(error);
    answer.value = { allowed: false, reason: `Your permissions are not known: ${why}`, known: true };
  }
}

/** Signs out, and loads the page again: it shows whether that has worked. */
export async function signOut() {
  await open("POST", "console/logout").catch(() => null);
  location.reload();
}

/** Reads the user's name; "" if the hub does not say it. Raises ApiError if the hub does not know the caller. */
export async function readUser() {
  try {
    const found = await post("apis/authentication.k8s.io/v1/selfsubjectreviews", {
      apiVersion: "authentication.k8s.io/v1",
      kind: "SelfSubjectReview",
    });
    user.value = found.status?.userInfo?.username ?? "";
  } catch (error) {
    if (error instanceof ApiError && error.code === 401) throw error;
  }
}
