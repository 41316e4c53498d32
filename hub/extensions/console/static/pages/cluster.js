// @ts-check
/** One cluster, now or as of a time. `at`: "" for now, else a time as `?at=` takes it. */
import { Ago, Button, Empty, StateBadge, notify } from "../components/basics.js";
import { can } from "../core/access.js";
import { RESOURCES, TABLE, get, pathOf } from "../core/api.js";
import { clusterOf } from "../core/cluster.js";
import { moment } from "../core/format.js";
import { useKeys } from "../core/keys.js";
import { href, route, setParams } from "../core/router.js";
import { now, requests, revisions, rowOf } from "../core/store.js";
import { html, useComputed } from "../core/ui.js";
import { Actions, removeTaint } from "../parts/actions.js";
import { changesOf } from "../parts/availability.js";
import { Problem, shown, useLoaded } from "../parts/blocks.js";
import { decisionAccess, isAddOns } from "../parts/decisions.js";
import { AddOns, Availability, Certificates, Diagnosis, State, Summary, Taints } from "../parts/overview.js";
import { momentOf, rowsOf } from "../parts/past.js";
import { Audit, Events, History, Yaml } from "../parts/records.js";

const NAME = /^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/;
const TABS = ["Overview", "History", "Events", "Audit", "YAML"];
const REFRESH = 10_000;

/** @param {{name: string, at: string}} props */
export function ClusterPage({ name, at }) {
  if (!NAME.test(name)) return html`<${Empty} title="Not a cluster"><p>${shown(name)} cannot be the name of a cluster.</p><//>`;
  return html`<${Cluster} name=${name} at=${at} />`;
}

/** @param {{name: string, at: string}} props */
function Cluster({ name, at }) {
  const past = at !== "";
  const live = past ? at : (rowOf("clusters", name).value?.revision ?? "");
  const session = rowOf("sessions", name).value;
  const period = useComputed(() => Math.floor(now.value / REFRESH)).value;
  const tick = past ? 0 : period;
  const pending = useComputed(() => (revisions.requests.value, [...requests.values()].filter((each) => each.cluster === name && !isAddOns(each.document)))).value;
  const { value: document, problem, missing } = useLoaded((stop) => get(pathOf(RESOURCES.clusters, name), { at }, { stop }), [name, at, live]);
  const { value: diagnosis } = useLoaded((stop) => (past ? Promise.resolve(null) : get(pathOf(RESOURCES.diagnoses, name), {}, { stop })), [name, past, live, session?.revision, pending.length, tick]);
  const { value: rows } = useLoaded(async (stop) => (past ? [] : rowsOf(await get(pathOf(RESOURCES.clusters, name), { includeObject: "None" }, { accept: TABLE, stop }))), [name, past, session?.revision, tick]);
  const { value: transitions, problem: unknown } = useLoaded((stop) => get(pathOf(RESOURCES.transitions, "", "", name), {}, { stop }), [name, live]);
  const access = decisionAccess();
  const taints = can("patch", RESOURCES.clusters, name).value;
  const { tab = "Overview" } = route.value.params;
  const press = (/** @type {string} */ kind) => /** @type {HTMLElement | null} */ (globalThis.document.querySelector(`[data-testid="do-${kind}"]`))?.click();
  useKeys([{ keys: "a", label: "Accept", run: () => press("accept") }, { keys: "d", label: "Deny", run: () => press("deny") }], []);

  const until = momentOf(at);
  const banner = past && html`<p class="banner past" role="status" data-testid="past"><strong>The past: ${Number.isNaN(until) ? at : moment(until)}.</strong> Actions are off; diagnosis, session and heartbeats have no past.
    <${Button} kind="small" testid="return" onClick=${() => setParams({ at: undefined })}>Return to now<//></p>`;
  const walk = diagnosis && html`<${Diagnosis} diagnosis=${diagnosis} />`;
  if (!document) {
    const gone = missing && html`<p>The hub has no cluster ${name}${past ? " at this time" : ""}. It may have been deleted: see its history.</p>`;
    return html`<div class="cluster">${banner}<header class="page-head"><h1>${name}</h1></header>${gone || html`<${Problem} text=${problem} />`}${walk}${missing && html`<${History} name=${name} until=${until} live=${live} />`}</div>`;
  }
  const { uid } = document.metadata;
  const cluster = clusterOf(document);
  const revision = `${live}/${session?.revision ?? ""}/${pending.length}`;
  const remove = (/** @type {any} */ taint) => removeTaint(name, taint).then(() => notify(`The taint ${taint.key} is removed.`)).catch((error) => notify(error.message, true));
  const views = {
    Overview: () => html`${walk}
      ${transitions ? html`<${Availability} name=${name} changes=${changesOf(transitions.items ?? [], document)} until=${Number.isNaN(until) ? Date.now() : until} />` : html`<${Problem} text=${unknown} />`}
      <div class="columns"><div><${Summary} document=${document} session=${session} cells=${rows?.[0] ?? {}} past=${past} />
        <${Taints} document=${document} past=${past} access=${taints} onRemove=${remove} /></div>
      <div><${AddOns} name=${name} at=${at} revision=${revision} /><${Certificates} name=${name} at=${at} revision=${revision} /></div></div>
      <${State} document=${document} />`,
    History: () => html`<${History} key=${at} name=${name} until=${until} live=${live} />`,
    Events: () => html`<${Events} name=${name} until=${until} live=${`${live}/${tick}`} />`,
    Audit: () => html`<${Audit} name=${name} until=${until} />`,
    YAML: () => html`<${Yaml} document=${document} />`,
  };
  const chosen = tab in views ? /** @type {keyof typeof views} */ (tab) : "Overview";
  return html`<div class="cluster" data-testid="cluster">
    ${banner}
    <header class="page-head"><h1>${name}</h1><${StateBadge} state=${cluster.state} /><span class="muted">${shown(cluster.reason)}, since <${Ago} at=${cluster.since} /></span><span class="grow"></span>
      <${Actions} cluster=${cluster} document=${document} requests=${pending} access=${access} past=${past} /></header>
    <${Problem} text=${problem} />
    <nav class="tabs" aria-label="Views of the cluster">${TABS.map((each) => html`<a key=${each} href=${href("cluster", [name], { at, tab: each === "Overview" ? "" : each })} aria-current=${each === chosen ? "page" : undefined} data-testid=${`tab-${each.toLowerCase()}`}>${each}</a>`)}</nav>
    <div key=${uid}>${views[chosen]()}</div>
  </div>`;
}
