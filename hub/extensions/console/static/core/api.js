// @ts-check
/** The client of the HTTPS door, for pages and for the worker. */

/** Accept headers: `TABLE` returns columns and cells, `NAMES` metadata only. */
export const TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1";
export const NAMES = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
export const MERGE_PATCH = "application/merge-patch+json";
const HEADER = "Muster-Console-Secret";
const ROOT = new URL("../../", import.meta.url);
const client = { secret: "", suffix: "open-cluster-management.io" };

/** @typedef {Record<string, string | number | undefined>} Query */
/** @typedef {{group: string, version: string, name: string}} Resource */
/**
 * @typedef {object} Options
 * @property {Query} [query]
 * @property {any} [body] sent as JSON
 * @property {string} [accept]
 * @property {string} [contentType]
 * @property {AbortSignal} [stop]
 */

/** An answer other than 2xx, or none (`code` 0). `reason` and `message` are those of the Status. */
export class ApiError extends Error {
  /** @param {number} code @param {string} reason @param {string} message @param {any} [status] */
  constructor(code, reason, message, status) {
    super(message);
    this.code = code;
    this.reason = reason;
    this.status = status;
  }
}

/** @param {string} secret @param {string} [suffix] of the API groups */
export function configure(secret, suffix) {
  client.secret = secret;
  if (suffix) client.suffix = suffix;
}

/** @returns {{secret: string, suffix: string}} */
export function configuration() {
  return { ...client };
}

/** Resources of the hub's own groups, by the first part of the group. */
const own = (/** @type {string} */ first, /** @type {string} */ version, /** @type {string} */ name) => ({
  get group() {
    return `${first}.${client.suffix}`;
  },
  version,
  name,
});

export const RESOURCES = {
  clusters: own("cluster", "v1", "managedclusters"),
  sets: own("cluster", "v1beta2", "managedclustersets"),
  addons: own("addon", "v1beta1", "managedclusteraddons"),
  sessions: own("hub", "v1alpha1", "clustersessions"),
  summaries: own("hub", "v1alpha1", "clustersummaries"),
  replicas: own("hub", "v1alpha1", "hubreplicas"),
  revocations: own("hub", "v1alpha1", "revocations"),
  diagnoses: own("hub", "v1alpha1", "clusterdiagnoses"),
  transitions: own("hub", "v1alpha1", "clustertransitions"),
  credentials: own("hub", "v1alpha1", "bootstrapcredentials"),
  rules: own("hub", "v1alpha1", "approvalrules"),
  audit: own("hub", "v1alpha1", "auditrecords"),
  requests: { group: "certificates.k8s.io", version: "v1", name: "certificatesigningrequests" },
  events: { group: "", version: "v1", name: "events" },
  leases: { group: "coordination.k8s.io", version: "v1", name: "leases" },
};

/**
 * Path of a resource: all objects, or one, or its subresource.
 * @param {Resource} resource @param {string} [name] @param {string} [subresource] @param {string} [namespace]
 */
export function pathOf(resource, name, subresource, namespace) {
  const root = resource.group ? `apis/${resource.group}` : "api";
  const within = namespace ? ["namespaces", namespace] : [];
  const rest = [...within, resource.name, ...(name ? [name] : []), ...(subresource ? [subresource] : [])];
  return [root, resource.version, ...rest.map(encodeURIComponent)].join("/");
}

/** @param {string} path @param {Query} [query] @returns {string} the absolute URL; empty parameters are left out */
export function urlOf(path, query) {
  const url = new URL(path, ROOT);
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== undefined && value !== "") url.searchParams.set(name, String(value));
  }
  return url.href;
}

/**
 * Sends one request and returns the open response. Raises ApiError.
 * @param {string} method @param {string} path @param {Options} [options] @returns {Promise<Response>}
 */
export async function open(method, path, options = {}) {
  /** @type {Record<string, string>} */
  const headers = { Accept: options.accept ?? "application/json" };
  if (client.secret) headers[HEADER] = client.secret;
  if (options.body !== undefined) headers["Content-Type"] = options.contentType ?? "application/json";
  let response;
  try {
    response = await fetch(urlOf(path, options.query), {
      method,
      headers,
      body: options.body === undefined ? undefined : JSON.stringify(options.body),
      signal: options.stop,
      redirect: "error",
      cache: "no-store",
    });
  } catch (error) {
    if (options.stop?.aborted) throw error;
    throw new ApiError(0, "Unreachable", "The hub does not answer.");
  }
  if (response.ok) return response;
  const text = await response.text();
  throw errorOf(response.status, text);
}

/** @param {number} code @param {string} text @returns {ApiError} */
export function errorOf(code, text) {
  try {
    const status = JSON.parse(text);
    if (status?.kind === "Status") return new ApiError(status.code ?? code, status.reason ?? "", status.message ?? "", status);
  } catch {
    // not JSON: a proxy's page
  }
  return new ApiError(code, "", `The hub answered ${code}.`);
}

/** @param {string} method @param {string} path @param {Options} [options] @returns {Promise<any>} the decoded JSON */
export async function request(method, path, options) {
  return (await open(method, path, options)).json();
}

/** @param {string} path @param {Query} [query] @param {Options} [options] */
export function get(path, query, options) {
  return request("GET", path, { ...options, query });
}

/** @param {string} path @param {any} body @param {Query} [query] */
export function post(path, body, query) {
  return request("POST", path, { body, query });
}

/** @param {string} path @param {any} body a JSON merge patch @param {Query} [query] for example `{dryRun: "All"}` */
export function patch(path, body, query) {
  return request("PATCH", path, { body, query, contentType: MERGE_PATCH });
}

/**
 * Yields the pages of a list, by `limit` and `continue`.
 * @param {string} path @param {Query} [query] @param {Options} [options] @returns {AsyncGenerator<any>}
 */
export async function* pages(path, query = {}, options) {
  let next = "";
  do {
    const page = await get(path, { limit: 500, ...query, continue: next }, options);
    yield page;
    next = page.metadata?.continue ?? "";
  } while (next);
}

/** @param {string} path @param {Query} [query] @param {Options} [options] @returns {Promise<any[]>} all items, or rows of a Table */
export async function listAll(path, query, options) {
  const found = [];
  for await (const page of pages(path, query, options)) found.push(...(page.items ?? page.rows ?? []));
  return found;
}
