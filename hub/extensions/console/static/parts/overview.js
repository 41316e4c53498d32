// @ts-check
/** What the hub knows of one cluster: the diagnosis, then its conditions, resources, add-ons, requests and hubs. */
import { Ago, Button, Command } from "../components/basics.js";
import { can } from "../core/access.js";
import { RESOURCES, configuration, get, pathOf, post } from "../core/api.js";
import { conditionOf } from "../core/cluster.js";
import { counted, moment, timeOf } from "../core/format.js";
import { href } from "../core/router.js";
import { html, useState } from "../core/ui.js";
import { Strip, statusWords } from "./availability.js";
import { Facts, Problem, Rows, Section, shown, useLoaded } from "./blocks.js";
import { decisionsOf, examine } from "./decisions.js";
import { RequestFacts } from "./request.js";

const MARKS = new Map([["Ok", "✓"], ["Waiting", "◆"], ["Warning", "▲"], ["Broken", "✕"]]);
const COMMAND = /`([^`]+)`|(?:^|: )(hubctl [^,;()`]+)/g;
const SHOWN_CHANGES = 20;
const HUBS = "hub.open-cluster-management.io/hubs";
export const MOVE_TO = "hub.open-cluster-management.io/move-to";

/** @param {any} document @returns {any[]} the hubs that the agent reports, in its order */
export function hubsOf(document) {
  try {
    const found = JSON.parse(document.metadata.annotations?.[HUBS] ?? "[]");
    return Array.isArray(found) ? found.filter((each) => each !== null && typeof each === "object") : [];
  } catch {
    return [];
  }
}

/** @param {string} advice @returns {string[]} the commands in it; `spoke run` is the agent itself */
function commandsIn(advice) {
  return [...advice.matchAll(COMMAND)].map(([, quoted, plain]) => (quoted ?? plain).trim()).filter((text) => text !== "spoke run");
}

/** The steps of the diagnosis, with remedies to copy. @param {{diagnosis: any}} props */
export function Diagnosis({ diagnosis }) {
  const { steps = [], cause, well } = diagnosis.status ?? {};
  return html`<${Section} title="Diagnosis" testid="diagnosis" aside=${html`<${Command} text=${`hubctl diagnose cluster ${diagnosis.metadata.name}`} />`}>
    <p class=${well ? "pad" : "pad cause"} data-testid="cause">${well ? "Available, and every step is in order." : shown(cause ? `${cause.step}: ${cause.message}` : "Not available; no step shows a cause.")}</p>
    <ol class="walk">${steps.map((/** @type {any} */ step) => html`<li key=${step.step} data-finding=${step.state} data-testid="step">
      <span class="mark" aria-hidden="true">${MARKS.get(step.state) ?? "?"}</span>
      <div><strong>${step.step}</strong> <span class="visually-hidden">${step.state}</span> ${shown(step.message)}
        ${step.state !== "Ok" && step.advice && html`<p class="advice">→ ${shown(step.advice)}</p>
          ${commandsIn(step.advice).map((text) => html`<${Command} text=${text} />`)}`}
      </div></li>`)}</ol>
  <//>`;
}

/** @param {{name: string, changes: import("./availability.js").Change[], until: number}} props */
export function Availability({ name, changes, until }) {
  const known = changes.filter(({ at }) => at <= until);
  const falls = known.slice(-SHOWN_CHANGES).reverse();
  return html`<${Section} title="Availability" testid="availability">
    <div class="pad"><${Strip} changes=${known} hours=${24} until=${until} /><${Strip} changes=${known} hours=${720} until=${until} /></div>
    ${falls.length > 0 && html`<details class="pad"><summary>${counted(falls.length, "change")}</summary>
      <${Rows} label="Changes of availability" titles=${["When", "To", "Reason", ""]} rows=${falls.map(({ at, to, reason }) => [
        moment(at), to ? statusWords(to) : "Deleted", reason,
        to === "True" ? "" : html`<a href=${href("time", [], { cluster: name, at: new Date(at).toISOString() })}>What came before</a>`,
      ])} /></details>`}
  <//>`;
}

/** @param {{document: any, past: boolean, onRemove: (taint: any) => void, access: any}} props */
export function Taints({ document, past, onRemove, access }) {
  const taints = document.spec?.taints ?? [];
  return html`<${Section} title="Taints" count=${taints.length} testid="taints">
    <${Rows} label="Taints" titles=${["Taint", "Since", ""]} rows=${taints.map((/** @type {any} */ taint) => [
      html`<code>${shown(`${taint.key}${taint.value ? `=${taint.value}` : ""}:${taint.effect}`)}</code>`,
      html`<${Ago} at=${timeOf(taint.timeAdded)} />`,
      !past && html`<${Button} kind="small" access=${access} label=${`Remove ${taint.key}`} onClick=${() => onRemove(taint)}>Remove<//>`,
    ])} /><//>`;
}

/** @param {{document: any}} props */
export function State({ document }) {
  const { status = {} } = document;
  const { capacity = {}, allocatable = {} } = status;
  const resources = [...new Set([...Object.keys(capacity), ...Object.keys(allocatable)])].sort();
  const claims = status.clusterClaims ?? [];
  const conditions = status.conditions ?? [];
  const hubs = hubsOf(document);
  return html`
    <${Section} title="Conditions" count=${conditions.length} testid="conditions">
      <${Rows} label="Conditions" titles=${["Type", "Status", "Since", "Reason", "Message"]} rows=${conditions.map((/** @type {any} */ each) => [each.type, each.status, html`<${Ago} at=${timeOf(each.lastTransitionTime)} />`, each.reason, each.message])} /><//>
    <${Section} title="Resources" testid="resources"><${Rows} label="Resources" titles=${["Name", "Capacity", "Allocatable"]} rows=${resources.map((each) => [each, capacity[each], allocatable[each]])} /><//>
    <${Section} title="Claims" count=${claims.length} testid="claims"><${Rows} label="Claims" titles=${["Name", "Value"]} rows=${claims.map((/** @type {any} */ each) => [each.name, each.value])} /><//>
    ${hubs.length > 0 && html`<${Section} title="Hubs" count=${hubs.length} testid="hubs"><${Rows} label="Hubs" titles=${["Name", "State", "Id", "URL", "Credential ends"]} rows=${hubs.map((each) => [each.name, each.state, each.id, each.url, moment(timeOf(each.credentialEndsAt))])} /><//>`}`;
}

/** @param {{name: string, at: string, revision: string}} props */
export function AddOns({ name, at, revision }) {
  const { value, problem } = useLoaded((stop) => get(pathOf(RESOURCES.addons, "", "", name), { at }, { stop }), [name, at, revision]);
  const addons = value?.items ?? [];
  return html`<${Section} title="Add-ons" count=${addons.length} testid="addons"><${Problem} text=${problem} />
    <${Rows} label="Add-ons" titles=${["Name", "Available", "Since", "Message"]} rows=${addons.map((/** @type {any} */ each) => {
      const found = conditionOf(each, "Available");
      return [each.metadata.name, found?.status ?? "not reported", html`<${Ago} at=${timeOf(found?.lastTransitionTime)} />`, found?.message];
    })} /><//>`;
}

/** Certificate requests with their content, and on demand the agents' certificates. @param {{name: string, at: string, revision: string}} props */
export function Certificates({ name, at, revision }) {
  const [asked, setAsked] = useState(/** @type {any} */ (null));
  const [agents, setAgents] = useState(/** @type {any[] | null} */ (null));
  const [refusal, setRefusal] = useState("");
  const query = { labelSelector: `open-cluster-management.io/cluster-name=${name}`, at };
  const { value, problem } = useLoaded((stop) => get(pathOf(RESOURCES.requests), query, { stop }), [name, at, revision]);
  const requests = [...(value?.items ?? [])].reverse();
  const decode = async (/** @type {any} */ document) => setAsked(asked?.document.metadata.name === document.metadata.name ? null : await examine(document));
  const show = () =>
    post(pathOf(RESOURCES.clusters, name, "rotate"), { apiVersion: `hub.${configuration().suffix}/v1alpha1`, kind: "ClusterRotation", spec: { show: true } })
      .then((found) => setAgents(found.status?.agents ?? []))
      .catch((error) => setRefusal(error.message));
  const button = !at && html`<${Button} kind="small" testid="certificates" access=${can("create", RESOURCES.clusters, name, "rotate").value} onClick=${show}>Show the agents' certificates<//>`;
  return html`<${Section} title="Certificate requests" count=${requests.length} testid="requests" aside=${button}>
    <${Problem} text=${problem || refusal} />
    ${agents && html`<${Rows} label="Certificates" titles=${["Agent", "Issued", "Expires", "Signed by"]} none="No agent has a valid certificate." rows=${agents.map((each) => [each.name, moment(timeOf(each.issuedTime)), moment(timeOf(each.endTime)), each.signedBy])} />`}
    <${Rows} label="Certificate requests" none="None. Issued requests are kept for one hour." titles=${["Name", "Age", "Requester", "State", ""]} rows=${requests.map((each) => [
      each.metadata.name, html`<${Ago} at=${timeOf(each.metadata.creationTimestamp)} />`, each.spec.username,
      `${decisionsOf(each).join(", ") || "Waiting"}${each.status?.certificate ? ", issued" : ""}`,
      html`<${Button} kind="small" label=${`Content of ${each.metadata.name}`} pressed=${asked?.document.metadata.name === each.metadata.name} onClick=${() => decode(each)}>Content<//>`,
    ])} />
    ${asked && html`<div class="asked" data-testid="request-facts"><${RequestFacts} asked=${asked} /></div>`}
  <//>`;
}

/** @param {{document: any, session: any, cells: Record<string, any>, past: boolean}} props */
export function Summary({ document, session, cells, past }) {
  const { metadata, spec = {}, status = {} } = document;
  const pairs = (/** @type {any} */ map) => Object.entries(map ?? {}).filter(([key]) => key !== HUBS).map(([key, value]) => html`<span class="chip" key=${key}>${shown(`${key}=${value}`)}</span> `);
  const agent = session ? `${session.agent}, version ${session.agentVersion || "unknown"}, replica ${session.replica}` : "";
  return html`<${Section} title="Facts" testid="facts"><${Facts} facts=${[
    ["Last heartbeat", !past && (/^\d/.test(cells["Last Beat"] ?? "") ? `${cells["Last Beat"]} ago` : "none yet")],
    ["Session", !past && (session ? html`open since <${Ago} at=${session.since} />, agent ${shown(agent)}` : (cells.Agent ?? "no session"))],
    ["Flaps", !past && cells.Flaps !== undefined && `${cells.Flaps} within a day`],
    ["Version", status.version?.kubernetes],
    ["API servers", (spec.managedClusterClientConfigs ?? []).map((/** @type {any} */ each) => each.url).join(", ")],
    ["Heartbeats", `every ${spec.leaseDurationSeconds ?? 60} s`],
    ["Created", html`${moment(timeOf(metadata.creationTimestamp))}`],
    ["Deleted", metadata.deletionTimestamp && `since ${moment(timeOf(metadata.deletionTimestamp))}; the hub waits for ${(metadata.finalizers ?? []).join(", ")}`],
    ["Moves to", metadata.annotations?.[MOVE_TO]],
    ["Labels", pairs(metadata.labels)],
    ["Annotations", pairs(metadata.annotations)],
  ]} /><//>`;
}
