// @ts-check
/**
 * Decisions about clusters and certificate requests, with the rules and the writes of `hubctl accept`, `deny` and `certificate`.
 * A request is approved only in the revision that was read, and only if the person who confirms has seen it.
 */
import { can } from "../core/access.js";
import { RESOURCES, configuration, get, patch, pathOf, request } from "../core/api.js";
import { CLUSTER_LABEL, stateOf } from "../core/cluster.js";
import { messageOf } from "./blocks.js";
import { decodeRequest } from "./der.js";

const ADDON_LABEL = "open-cluster-management.io/addon-name";
const BOOTSTRAP_USER = "system:bootstrap:";
const SIGNER = "kubernetes.io/kube-apiserver-client";
const SIGNERS = { group: "certificates.k8s.io", version: "v1", name: "signers" };
/** Annotation with the reason of a denial. */
const DENIED = "hub.open-cluster-management.io/denied";
const DECISIONS = ["Approved", "Denied", "Failed"];
const ATTEMPTS = 5;
const SUBJECT = /^system:open-cluster-management:([a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?):([a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)$/;

/**
 * @typedef {object} Asked a certificate request with what an operator compares
 * @property {any} document
 * @property {import("./der.js").RequestFacts | null} facts null: the request cannot be decoded
 * @property {string} error why it cannot be decoded
 * @property {Credential} credential of its requester
 * @property {boolean} own whether it is for an agent of its cluster and came with a credential for exactly this cluster
 */
/** @typedef {{id: string, boundTo: string, text: string, document: any}} Credential */
/**
 * @typedef {object} Verdict
 * @property {Asked | null} request the only one that waits, which is approved together with the acceptance
 * @property {string} refusal why no request may be approved in this step; empty: one may, or none waits
 */

/** What the decisions need: the same as the hub checks. */
export function decisionAccess() {
  const register = { group: `register.${configuration().suffix}`, version: "v1", name: "managedclusters" };
  const approve = [can("update", RESOURCES.requests, "", "approval"), can("approve", SIGNERS, SIGNER)];
  const accept = [can("patch", RESOURCES.clusters), can("update", register, "", "accept"), ...approve];
  const first = (/** @type {typeof accept} */ all) => (all.find((one) => !one.value.allowed) ?? all[0]).value;
  return { accept: first(accept), approve: first(approve) };
}

/** @param {any} request @returns {string[]} its decisions; empty: it waits */
export function decisionsOf(request) {
  const types = (request.status?.conditions ?? []).map((/** @type {any} */ each) => String(each.type));
  return types.filter((/** @type {string} */ type) => DECISIONS.includes(type));
}

/** @param {any} request @returns {boolean} whether it is for an add-on of a cluster */
export function isAddOns(request) {
  return ADDON_LABEL in (request.metadata.labels ?? {});
}

/** @param {string} user of a request @returns {Promise<Credential>} the bootstrap credential of this user */
async function credentialOf(user) {
  const id = user.startsWith(BOOTSTRAP_USER) ? user.slice(BOOTSTRAP_USER.length) : "";
  if (!id) return { id, boundTo: "", text: "no bootstrap credential", document: null };
  try {
    const document = await get(pathOf(RESOURCES.credentials, id));
    const { clusterName = "", clusterNames = [] } = document.spec ?? {};
    return { id, boundTo: clusterName, text: `for ${clusterName || clusterNames.join(", ") || "any name"}`, document };
  } catch (error) {
    return { id, boundTo: "", text: `not readable: ${messageOf(error)}`, document: null };
  }
}

/**
 * Decodes a request and finds the credential of its requester. `known`: credentials by user.
 * @param {any} document @param {Map<string, Promise<Credential>>} [known] @returns {Promise<Asked>}
 */
export async function examine(document, known = new Map()) {
  const { username = "", request: encoded = "", signerName } = document.spec;
  if (!known.has(username)) known.set(username, credentialOf(username));
  const credential = await /** @type {Promise<Credential>} */ (known.get(username));
  let facts = null;
  let error = "";
  try {
    facts = await decodeRequest(encoded);
  } catch (failure) {
    error = messageOf(failure);
  }
  const cluster = document.metadata.labels?.[CLUSTER_LABEL] ?? "";
  const claimed = facts?.commonNames.length === 1 ? SUBJECT.exec(facts.commonNames[0]) : null;
  const own = cluster !== "" && claimed?.[1] === cluster && signerName === SIGNER && credential.boundTo === cluster;
  return { document, facts, error, credential, own };
}

/** Which of a cluster's undecided requests may be approved together with its acceptance. @param {Asked[]} waiting @returns {Verdict} */
export function judge(waiting) {
  const asked = waiting.filter((each) => !isAddOns(each.document));
  if (!asked.length) return { request: null, refusal: "" };
  if (asked.length > 1) return { request: null, refusal: `${asked.length} requests wait. Compare them, and approve one of them.` };
  if (asked[0].own) return { request: asked[0], refusal: "" };
  return { request: null, refusal: "The requester has no bootstrap credential for only this cluster. Check the requester." };
}

/**
 * Reads and patches a cluster, again after conflicts. `change` returns a merge patch; null: there is nothing to change.
 * @param {string} name @param {(cluster: any) => any} change @returns {Promise<any>} the cluster afterwards
 */
export async function patchCluster(name, change) {
  const path = pathOf(RESOURCES.clusters, name);
  for (let attempt = 1; ; attempt += 1) {
    const cluster = await get(path);
    const changed = change(cluster);
    if (!changed) return cluster;
    const metadata = { ...changed.metadata, resourceVersion: cluster.metadata.resourceVersion };
    try {
      return await patch(path, { ...changed, metadata });
    } catch (error) {
      if (/** @type {any} */ (error).reason !== "Conflict" || attempt === ATTEMPTS) throw error;
    }
  }
}

/**
 * Accepts or denies a cluster, if it is not yet. Throws if another cluster has the name now.
 * @param {{name: string, uid: string}} shown @param {boolean} accepted @param {string} [reason] of a denial @returns {Promise<any>}
 */
export function setAccepted(shown, accepted, reason = "") {
  return patchCluster(shown.name, (cluster) => {
    if (cluster.metadata.uid !== shown.uid) throw new Error(`Another cluster has the name ${shown.name} now. Look at it first.`);
    if (accepted) return cluster.spec?.hubAcceptsClient ? null : { spec: { hubAcceptsClient: true } };
    return stateOf(cluster).state === "Denied" ? null : { metadata: { annotations: { [DENIED]: reason } }, spec: { hubAcceptsClient: false } };
  });
}

/** Approves or denies a request in the revision that was read. @param {any} asked @param {"Approved" | "Denied"} decision @param {string} [note] for its message */
export function decide(asked, decision, note) {
  const name = asked.metadata.name;
  const made = decisionsOf(asked);
  if (made.length) throw new Error(`The request ${name} is ${made[0].toLowerCase()} already. A decision is final.`);
  const reason = decision === "Approved" ? "ConsoleApprove" : "ConsoleDeny";
  const message = `This certificate request was ${decision.toLowerCase()} by the console.${note ? ` ${note}` : ""}`;
  const conditions = [...(asked.status?.conditions ?? []), { type: decision, status: "True", reason, message }];
  return request("PUT", pathOf(RESOURCES.requests, name, "approval"), { body: { ...asked, status: { ...asked.status, conditions } } });
}

/** @param {string} cluster @returns {Promise<Asked[]>} the undecided requests of its agents */
export async function waitingOf(cluster) {
  const list = await get(pathOf(RESOURCES.requests), { labelSelector: `${CLUSTER_LABEL}=${cluster}` });
  const known = new Map();
  const waiting = (list.items ?? []).filter((/** @type {any} */ each) => !decisionsOf(each).length && !isAddOns(each));
  return Promise.all(waiting.map((/** @type {any} */ each) => examine(each, known)));
}

/**
 * Accepts a cluster, then approves its request, as `hubctl accept`. The request is read again, and only the one that was
 * confirmed is approved. Throws with the reason if the cluster is accepted and its request is not approved.
 * @param {{name: string, uid: string}} cluster @param {Asked | null} seen null: none waited @returns {Promise<string>} what was done
 */
export async function accept(cluster, seen) {
  await setAccepted(cluster, true);
  const { request: now, refusal } = judge(await waitingOf(cluster.name));
  const { name, uid } = now?.document.metadata ?? {};
  const isNew = now !== null && uid !== seen?.document.metadata.uid;
  try {
    if (refusal || isNew) throw new Error(refusal || `The request ${name} arrived after the preview. Look at it, and approve it.`);
    if (!now) return `${cluster.name} is accepted. ${seen ? "Its request was decided already." : "No certificate request waits."}`;
    await decide(now.document, "Approved");
  } catch (error) {
    throw new Error(`${cluster.name} is accepted, but no certificate request is approved. ${messageOf(error)}`);
  }
  return `${cluster.name} is accepted, and its certificate request ${name} is approved.`;
}
