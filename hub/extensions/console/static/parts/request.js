// @ts-check
/** Waiting decisions of the store as entries of the inbox, and a certificate request as facts to compare. */
import { Ago } from "../components/basics.js";
import { conditionOf } from "../core/cluster.js";
import { duration, timeOf } from "../core/format.js";
import { html } from "../core/ui.js";
import { Facts } from "./blocks.js";
import { isAddOns } from "./decisions.js";

/** @typedef {import("./decisions.js").Asked} Asked */
/** @typedef {{key: string, cluster: import("../core/cluster.js").Cluster | undefined, requests: import("../core/cluster.js").CertificateRequest[], since: number}} Entry `key`: name of the cluster, or `csr/` and that of a request without one */

/**
 * One entry per cluster that is not accepted or whose agent waits for an approval, and one per other request; oldest first.
 * @param {Iterable<import("../core/cluster.js").Cluster>} clusters @param {Iterable<import("../core/cluster.js").CertificateRequest>} requests
 * @returns {Entry[]}
 */
export function entriesOf(clusters, requests) {
  /** @type {Map<string, Entry>} */
  const entries = new Map();
  const known = new Map();
  for (const cluster of clusters) {
    known.set(cluster.name, cluster);
    if (cluster.state === "Waiting") entries.set(cluster.name, { key: cluster.name, cluster, requests: [], since: cluster.created });
  }
  for (const request of requests) {
    const cluster = isAddOns(request.document) ? undefined : known.get(request.cluster);
    const key = cluster ? cluster.name : `csr/${request.name}`;
    const entry = entries.get(key);
    if (entry) entry.requests.push(request);
    else entries.set(key, { key, cluster, requests: [request], since: request.created });
  }
  return [...entries.values()].sort((one, other) => one.since - other.since || one.key.localeCompare(other.key));
}

/** @param {any} credential a BootstrapCredential; null: there is none @returns {string} its limits in words */
function limits(credential) {
  if (!credential) return "";
  const { spec = {}, status = {} } = credential;
  const uses = `${status.usesSpent ?? 0} spent and ${status.usesHeld ?? 0} held of ${spec.uses ?? "any number of"} uses`;
  return [status.phase, uses, spec.clusterSet && `set ${spec.clusterSet}`, `by ${status.createdBy}`].filter(Boolean).join(", ");
}

/** @param {Asked} asked @param {any} cluster the ManagedCluster; null: not read @returns {string} */
function attestation({ credential }, cluster) {
  const attested = cluster && conditionOf(cluster, "ManagedClusterAttested");
  if (attested?.status === "True") return attested.message;
  const demanded = credential.document?.spec?.attestation?.issuer;
  return demanded ? `Demanded of ${demanded}; the hub has verified none yet.` : "None: the name belongs to the holder of the credential.";
}

/** What an operator compares before an approval. @param {{asked: Asked, cluster?: any}} props */
export function RequestFacts({ asked, cluster = null }) {
  const { document, facts, error, credential } = asked;
  const { spec, metadata } = document;
  const rule = conditionOf(document, "ApprovalRuleDryRun")?.message;
  const asks = [...new Set([...(spec.usages ?? []), ...(facts?.usages ?? [])])].join(", ");
  return html`<${Facts} facts=${[
    ["Request", html`<code>${metadata.name}</code>, <${Ago} at=${timeOf(metadata.creationTimestamp)} /> old`],
    ["Requester", html`<code>${spec.username}</code>`],
    ["Credential", credential.id ? `${credential.id}, ${credential.text}` : credential.text],
    ["Its limits", limits(credential.document)],
    ["Attestation", attestation(asked, cluster)],
    ["Subject", facts ? facts.subject : `The request is not readable: ${error}.`],
    ["Key", facts && html`${facts.key}, <code>SHA256:${facts.fingerprint}</code>`],
    ["Other names", facts && (facts.names.join(", ") || "none")],
    ["Usages", asks],
    ["Extensions", facts?.extensions.join(", ")],
    ["Signer", spec.signerName],
    ["Validity", spec.expirationSeconds ? duration(spec.expirationSeconds * 1000) : "the hub's default"],
    ["Rule", rule ?? "No rule decides this request."],
  ]} />`;
}
