// @ts-check
/** What an operator does to one cluster: the actions of hubctl, each with its effect by dry run. */
import { Button, Command } from "../components/basics.js";
import { Confirm } from "../components/confirm.js";
import { can } from "../core/access.js";
import { RESOURCES, configuration, open, pathOf, post } from "../core/api.js";
import { counted } from "../core/format.js";
import { html, useState } from "../core/ui.js";
import { Field, Problem, shown, useLoaded } from "./blocks.js";
import { patchCluster, waitingOf } from "./decisions.js";
import { AcceptDialog, Ask, DenyDialog } from "./dialogs.js";
import { MOVE_TO, hubsOf } from "./overview.js";

const DRY_RUN = { dryRun: "All" };
const EFFECTS = ["NoSelect", "PreferNoSelect", "NoSelectIfNew"];
const REASONS = ["Unspecified", "KeyCompromise", "AffiliationChanged", "Superseded", "CessationOfOperation", "PrivilegeWithdrawn"];
const WARNING = /299 [^ ]+ "((?:[^"\\]|\\.)*)"/g;

const own = () => `hub.${configuration().suffix}/v1alpha1`;
const valueOf = (/** @type {any} */ event) => event.target.value;

/** @param {any} status of a Revocation @returns {string} what it ends */
function ended(status) {
  const counts = /** @type {[number, string][]} */ ([
    [status?.certificatesRevoked ?? 0, "certificate"],
    [status?.bootstrapCredentials?.length ?? 0, "bootstrap credential"],
    [status?.requestsRefused?.length ?? 0, "certificate request"],
    [status?.serviceAccountsEnded ?? 0, "ServiceAccount"],
  ]);
  return counts.filter(([count]) => count).map(([count, noun]) => counted(count, noun)).join(", ") || "nothing that is still valid";
}

/** @param {{name: string, onClose: () => void}} props */
function Revoke({ name, onClose }) {
  const chosen = { reason: REASONS[0], message: "" };
  const [spec] = useState(chosen);
  const send = async (/** @type {any} */ query) => {
    const { reason, message } = spec;
    const body = { apiVersion: own(), kind: "Revocation", metadata: { generateName: `${name}-` }, spec: { cluster: name, reason, ...(message && { message }) } };
    return post(pathOf(RESOURCES.revocations), body, query);
  };
  const preview = async () => html`
    <p>This revokes <strong data-testid="effect">${ended((await send(DRY_RUN)).status)}</strong>. Open sessions end. It cannot be undone. The cluster stays accepted, and can return with a bootstrap credential that is made later:</p>
    <${Command} text=${`hubctl create bootstrap-kubeconfig --cluster ${name} -o ${name}.bootstrap`} />
    <${Field} label="Reason"><select onChange=${(/** @type {any} */ event) => (spec.reason = valueOf(event))}>${REASONS.map((each) => html`<option>${each}</option>`)}</select><//>
    <${Field} label="Message"><input maxLength=${1024} onInput=${(/** @type {any} */ event) => (spec.message = valueOf(event))} /><//>`;
  const run = async () => `Revoked: ${ended((await send({})).status)}.`;
  return html`<${Confirm} title=${`Revoke ${name}`} name=${name} verb="Revoke" preview=${preview} run=${run} onClose=${onClose} />`;
}

/** @param {{name: string, uid: string, onClose: () => void}} props */
function Delete({ name, uid, onClose }) {
  const send = async (/** @type {any} */ query) => {
    const response = await open("DELETE", pathOf(RESOURCES.clusters, name), { query, body: { preconditions: { uid } } });
    const warnings = [...(response.headers.get("Warning") ?? "").matchAll(WARNING)].map(([, text]) => text.replace(/\\(.)/g, "$1"));
    return { held: (await response.json()).metadata?.finalizers ?? [], warnings };
  };
  const preview = async () => {
    const { held, warnings } = await send(DRY_RUN);
    return html`<p data-testid="effect">The hub deletes the cluster with its add-ons, and revokes its certificates and the bootstrap credentials of its name.${held.length > 0 && ` It waits for: ${held.join(", ")}.`} Nothing changes in the cluster itself.</p>
      ${warnings.map((text) => html`<p class="warning">▲ ${shown(text)}</p>`)}
      <p class="muted">A cluster that will never return: <${Command} text=${`hubctl delete cluster ${name} --force`} /></p>`;
  };
  const run = async () => {
    const { held } = await send({});
    return held.length ? `${name} is being deleted. The hub waits for ${held.join(", ")}.` : `${name} is deleted.`;
  };
  return html`<${Confirm} title=${`Delete ${name}`} name=${name} verb="Delete" preview=${preview} run=${run} onClose=${onClose} />`;
}

/** Adds a taint; the same key and effect with another value is refused, as in hubctl. @param {{name: string, onClose: () => void}} props */
function Taint({ name, onClose }) {
  const [taint, setTaint] = useState({ key: "", value: "", effect: EFFECTS[0] });
  const set = (/** @type {string} */ field) => (/** @type {any} */ event) => setTaint({ ...taint, [field]: valueOf(event).trim() });
  const run = async () => {
    await patchCluster(name, (cluster) => {
      const taints = cluster.spec?.taints ?? [];
      if (taints.some((/** @type {any} */ each) => each.key === taint.key && each.effect === taint.effect)) throw new Error("The cluster has a taint with this key and effect already.");
      return { spec: { taints: [...taints, taint.value ? taint : { key: taint.key, effect: taint.effect }] } };
    });
    return `${name} has the taint ${taint.key}:${taint.effect}.`;
  };
  return html`<${Ask} title=${`Taint ${name}`} verb="Add" run=${run} onClose=${onClose} disabled=${taint.key ? "" : "Write the key."}>
    <p>Placements do not select clusters whose taints they do not tolerate.</p>
    <${Field} label="Key"><input data-testid="taint-key" value=${taint.key} placeholder="example.com/maintenance" onInput=${set("key")} /><//>
    <${Field} label="Value"><input value=${taint.value} onInput=${set("value")} /><//>
    <${Field} label="Effect"><select value=${taint.effect} onChange=${set("effect")}>${EFFECTS.map((each) => html`<option>${each}</option>`)}</select><//><//>`;
}

/** @param {string} name @param {any} taint as it was shown */
export async function removeTaint(name, taint) {
  const same = (/** @type {any} */ each) => each.key === taint.key && each.effect === taint.effect && each.value === taint.value;
  await patchCluster(name, ({ spec }) => ((spec?.taints ?? []).some(same) ? { spec: { taints: spec.taints.filter((/** @type {any} */ each) => !same(each)) } } : null));
}

/** An order to the agent: renew its certificates, or move. @param {{name: string, document: any, kind: string, onClose: () => void}} props */
function Order({ name, document, kind, onClose }) {
  const moves = kind === "move";
  const pending = document.metadata.annotations?.[MOVE_TO];
  const hubs = hubsOf(document).filter((each) => each.id);
  const [to, setTo] = useState(moves ? "" : "-");
  const spec = moves ? (to === "cancel" ? { cancel: true } : { to }) : { withinSeconds: 0 };
  const send = (/** @type {any} */ query) => post(pathOf(RESOURCES.clusters, name, moves ? "move" : "rotate"), { apiVersion: own(), kind: moves ? "ClusterMove" : "ClusterRotation", spec }, query);
  const { value: tried, problem } = useLoaded(async () => (to ? { to, ...(await send(DRY_RUN)) } : null), [to]);
  const value = tried?.to === to ? tried : null; // the answer to an earlier choice stays until the next one
  const renewing = `${counted(value?.status?.agents?.length ?? 0, "agent")} with a certificate renew at once, with new keys. No heartbeat is lost.`;
  const run = async () => (await send({}), moves ? (to === "cancel" ? `${name} stays.` : `${name} is asked to move.`) : `${name} is asked to renew.`);
  return html`<${Ask} title=${moves ? `Move ${name}` : `Renew certificates of ${name}`} verb=${moves ? "Order the move" : "Renew"} run=${run} onClose=${onClose} disabled=${problem || (value ? "" : to ? "The dry run has no answer yet." : "Choose a hub.")}>
    ${moves && html`<${Field} label="Hub"><select data-testid="move-to" value=${to} onChange=${(/** @type {any} */ event) => setTo(valueOf(event))}>
      <option value="">choose</option>${pending && html`<option value="cancel">stay: cancel the move</option>`}${hubs.map((each) => html`<option value=${each.id}>${shown(`${each.name || each.id} (${each.state})`)}</option>`)}</select><//>`}
    <${Problem} text=${problem} />
    ${value && html`<p data-testid="effect">${moves ? (to === "cancel" ? "The agent stays at this hub." : `The agent moves to ${shown(value.status?.hubName || value.status?.hubID)}. Here the cluster becomes Unknown, without an alarm.`) : renewing}</p>`}
  <//>`;
}

/** The buttons. @param {{cluster: any, document: any, requests: any[], access: {accept: any, approve: any}, past: boolean, children?: any}} props */
export function Actions({ cluster, document, requests, access, past }) {
  const [shownDialog, setDialog] = useState(/** @type {{kind: string, asked?: any[]} | null} */ (null));
  const { name } = document.metadata;
  const close = () => setDialog(null);
  const off = past ? "This is the past. Return to now first." : "";
  const accepted = document.spec?.hubAcceptsClient === true;
  const decided = accepted && !requests.length;
  const accept = async () => setDialog({ kind: "accept", asked: await waitingOf(name) });
  const entry = { key: name, cluster, requests, since: 0 };
  const button = (/** @type {string} */ kind, /** @type {string} */ words, /** @type {any} */ may, why = "", tone = "") =>
    html`<${Button} key=${kind} kind=${tone} testid=${`do-${kind}`} access=${may} disabled=${off || why} onClick=${kind === "accept" ? accept : () => setDialog({ kind })}>${words}<//>`;
  return html`<div class="actions" role="group" aria-label="Actions">
    ${button("accept", "Accept", access.accept, decided ? "It is accepted, and no request waits." : "", decided ? "" : "primary")}
    ${button("deny", "Deny", access.accept, cluster.state === "Denied" && !requests.length ? "It is denied, and no request waits." : "")}
    ${button("taint", "Taint", can("patch", RESOURCES.clusters, name).value)}
    ${button("rotate", "Renew certificates", can("create", RESOURCES.clusters, name, "rotate").value)}
    ${button("move", "Move", can("create", RESOURCES.clusters, name, "move").value, hubsOf(document).length > 1 ? "" : "Its agent has no other hub.")}
    ${button("revoke", "Revoke", can("create", RESOURCES.revocations).value, "", "danger")}
    ${button("delete", "Delete", can("delete", RESOURCES.clusters, name).value, "", "danger")}
    ${shownDialog?.kind === "accept" && html`<${AcceptDialog} chosen=${[{ entry, asked: shownDialog.asked }]} onClose=${close} />`}
    ${shownDialog?.kind === "deny" && html`<${DenyDialog} chosen=${[entry]} whole=${true} onClose=${close} />`}
    ${shownDialog?.kind === "taint" && html`<${Taint} name=${name} onClose=${close} />`}
    ${(shownDialog?.kind === "rotate" || shownDialog?.kind === "move") && html`<${Order} name=${name} document=${document} kind=${shownDialog.kind} onClose=${close} />`}
    ${shownDialog?.kind === "revoke" && html`<${Revoke} name=${name} onClose=${close} />`}
    ${shownDialog?.kind === "delete" && html`<${Delete} name=${name} uid=${document.metadata.uid} onClose=${close} />`}
  </div>`;
}
