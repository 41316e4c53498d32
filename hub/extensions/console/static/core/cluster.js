// @ts-check
/** Rows of the store, extracted from the hub's objects. Pure functions. */
import { minorOf, quantity, timeOf } from "./format.js";

/** @typedef {"Available" | "Unavailable" | "Unknown" | "Revoked" | "Waiting" | "Denied" | "Never"} State */
/**
 * @typedef {object} Cluster
 * @property {string} name
 * @property {string} uid
 * @property {string} revision
 * @property {number} created
 * @property {State} state
 * @property {string} reason of the state
 * @property {string} message
 * @property {number} since of the state; NaN: not known
 * @property {string} set
 * @property {Record<string, string>} labels
 * @property {string} version
 * @property {string} minor
 * @property {number} nodes
 * @property {number} cpu cores
 * @property {number} memory bytes
 * @property {string} agentVersion
 * @property {Record<string, string>} addons state by name
 * @property {Record<string, string>} taints effect by key
 */
/** @typedef {{name: string, revision: string, replica: string, since: number, agent: string, agentVersion: string}} Session */
/**
 * @typedef {object} CertificateRequest One that waits for a decision; `document`: the whole object.
 * @property {string} name
 * @property {string} revision
 * @property {string} cluster "": it names none
 * @property {string} user
 * @property {string} signer
 * @property {number} created
 * @property {any} document
 */

export const SET_LABEL = "cluster.open-cluster-management.io/clusterset";
export const CLUSTER_LABEL = "open-cluster-management.io/cluster-name";
const ADDON_PREFIX = "feature.open-cluster-management.io/addon-";
const AGENT_VERSION = "hub.open-cluster-management.io/agent-version";
const AVAILABLE = "ManagedClusterConditionAvailable";
const ACCEPTED = "HubAcceptedManagedCluster";

/** @type {readonly State[]} in the order of bars and tiles */
export const STATES = ["Available", "Unavailable", "Unknown", "Revoked", "Waiting", "Denied", "Never"];

/** @param {any} document @param {string} type @returns {any} the condition, or undefined */
export function conditionOf(document, type) {
  return (document.status?.conditions ?? []).find((/** @type {any} */ each) => each?.type === type);
}

/** @param {any} document a ManagedCluster @returns {{state: State, reason: string, message: string, since: number}} */
export function stateOf(document) {
  const accepted = conditionOf(document, ACCEPTED);
  const available = conditionOf(document, AVAILABLE);
  if (!document.spec?.hubAcceptsClient) {
    const state = accepted?.reason === "HubClusterAdminDenied" ? "Denied" : "Waiting";
    const since = timeOf(accepted?.lastTransitionTime ?? document.metadata?.creationTimestamp);
    return { state, reason: accepted?.reason ?? "NotAccepted", message: accepted?.message ?? "", since };
  }
  if (!available) {
    const since = timeOf(accepted?.lastTransitionTime ?? document.metadata?.creationTimestamp);
    return { state: "Never", reason: "NoHeartbeatYet", message: "The cluster has never sent a heartbeat.", since };
  }
  const state = stateOfCondition(available);
  const { reason = "", message = "" } = available;
  return { state, reason, message, since: timeOf(available.lastTransitionTime) };
}

/** @param {any} available the condition @returns {State} */
function stateOfCondition(available) {
  if (available.status === "True") return "Available";
  if (available.status === "False") return "Unavailable";
  return available.reason === "Revoked" ? "Revoked" : "Unknown";
}

/** @param {any} document a ManagedCluster @returns {Cluster} */
export function clusterOf(document) {
  const { metadata = {}, status = {}, spec = {} } = document;
  const version = status.version?.kubernetes ?? "";
  /** @type {Record<string, string>} */
  const labels = {};
  /** @type {Record<string, string>} */
  const addons = {};
  for (const [name, value] of Object.entries(metadata.labels ?? {})) {
    if (name.startsWith(ADDON_PREFIX)) addons[name.slice(ADDON_PREFIX.length)] = String(value);
    else labels[name] = String(value);
  }
  return {
    name: metadata.name,
    uid: metadata.uid ?? "",
    revision: metadata.resourceVersion ?? "",
    created: timeOf(metadata.creationTimestamp),
    ...stateOf(document),
    set: labels[SET_LABEL] ?? "",
    labels,
    version,
    minor: minorOf(version),
    nodes: quantity(status.capacity?.nodes),
    cpu: quantity(status.capacity?.cpu),
    memory: quantity(status.capacity?.memory),
    agentVersion: metadata.annotations?.[AGENT_VERSION] ?? "",
    addons,
    taints: Object.fromEntries((spec.taints ?? []).map((/** @type {any} */ taint) => [taint.key, taint.effect])),
  };
}

/** @param {any} document a ClusterSession @returns {Session | null} null: it has ended */
export function sessionOf(document) {
  const { metadata = {}, status = {} } = document;
  if (status.connected === false) return null;
  const { replica = "", agent = "", agentVersion = "" } = status;
  return { name: metadata.name, revision: metadata.resourceVersion ?? "", replica, since: timeOf(status.connectedSince), agent, agentVersion };
}

/** @param {any} document a CertificateSigningRequest @returns {CertificateRequest | null} null: it is decided */
export function requestOf(document) {
  const { metadata = {}, spec = {}, status = {} } = document;
  const decided = (status.conditions ?? []).some((/** @type {any} */ each) => ["Approved", "Denied", "Failed"].includes(each?.type));
  if (decided) return null;
  return {
    name: metadata.name,
    revision: metadata.resourceVersion ?? "",
    cluster: metadata.labels?.[CLUSTER_LABEL] ?? "",
    user: spec.username ?? "",
    signer: spec.signerName ?? "",
    created: timeOf(metadata.creationTimestamp),
    document,
  };
}
