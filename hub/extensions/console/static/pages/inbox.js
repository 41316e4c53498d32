// @ts-check
/** Who waits for a decision. The fleet page opens it as `#/inbox?select=a,b&do=accept` (or `do=deny`) for chosen clusters. */
import { Ago, Button, Command, Empty, StateBadge, notify } from "../components/basics.js";
import { RESOURCES, get, pathOf } from "../core/api.js";
import { counted } from "../core/format.js";
import { useKeys } from "../core/keys.js";
import { href, route, setParams } from "../core/router.js";
import { clusters, loaded, requests, revisions } from "../core/store.js";
import { html, useComputed, useRef, useRequest, useState } from "../core/ui.js";
import { Facts, Problem, shown, useLoaded } from "../parts/blocks.js";
import { decisionAccess, examine, isAddOns, judge } from "../parts/decisions.js";
import { AcceptDialog, ApproveDialog, DenyDialog } from "../parts/dialogs.js";
import { RequestFacts, entriesOf } from "../parts/request.js";

/** @typedef {import("../parts/request.js").Entry} Entry */
/** @typedef {import("../parts/decisions.js").Asked} Asked */

const SHOWN = 100;
const CLUSTER_UID = "hub.open-cluster-management.io/cluster-uid";

/** @param {Entry[]} entries @param {AbortSignal} stop @returns {Promise<Map<string, Asked[]>>} their requests, by the entry's key */
async function examineAll(entries, stop) {
  const credentials = new Map();
  const found = new Map();
  for (const entry of entries) {
    if (stop.aborted) break;
    found.set(entry.key, await Promise.all(entry.requests.map((one) => examine(one.document, credentials))));
  }
  return found;
}

/** @param {{entry: Entry, asked: Asked[], onApprove: (asked: Asked) => void, access: any}} props */
function Details({ entry, asked, onApprove, access }) {
  const name = entry.cluster?.name;
  const { value: cluster, problem } = useLoaded((stop) => (name ? get(pathOf(RESOURCES.clusters, name), {}, { stop }) : Promise.resolve(null)), [name, entry.cluster?.revision]);
  const conditions = cluster?.status?.conditions ?? [];
  const said = (/** @type {string} */ type) => conditions.find((/** @type {any} */ each) => each.type === type)?.message;
  const alone = asked.length === 1 && asked[0].own;
  return html`<div class="details">
    <${Problem} text=${problem} />
    ${cluster && html`<${Facts} facts=${[
      ["Cluster uid", cluster.metadata.annotations?.[CLUSTER_UID] ?? "not reported"],
      ["Labels", Object.entries(cluster.metadata.labels ?? {}).map(([key, value]) => `${key}=${value}`).join(", ")],
      ["Rule", said("ApprovalRuleDryRun") ?? "No rule decides about this cluster."],
      ["Duplicate", said("ManagedClusterDuplicated")],
    ]} />`}
    ${asked.map((one) => html`<div class="asked" key=${one.document.metadata.uid} data-testid="request-facts">
      <${RequestFacts} asked=${one} cluster=${cluster} />
      ${!(alone && entry.cluster) && html`<${Button} access=${access} testid="approve-one" onClick=${() => onApprove(one)}>Approve ${one.document.metadata.name}<//>`}
    </div>`)}
    ${!asked.length && html`<p class="muted">No certificate request of its agent waits. The cluster may not report before it is accepted.</p>`}
    <${Command} text=${name ? `hubctl accept ${name}` : `hubctl certificate approve ${entry.requests[0]?.name}`} />
  </div>`;
}

/** @param {{entry: Entry, asked: Asked[] | undefined}} props what one step can do, in words */
function Verdict({ entry, asked }) {
  if (!asked) return html`<span class="muted">Reading…</span>`;
  if (!entry.cluster) return html`<span>${isAddOns(entry.requests[0].document) ? "A request of an add-on" : "A request that belongs to no known cluster"}</span>`;
  const { request, refusal } = judge(asked);
  if (refusal) return html`<span class="warning">▲ ${refusal}</span>`;
  return html`<span>${request ? "Its request comes with a credential for this cluster alone." : "No certificate request waits."}</span>`;
}

export function InboxPage() {
  const entries = useComputed(() => (revisions.clusters.value, revisions.requests.value, entriesOf(clusters.values(), requests.values()))).value;
  const visible = entries.slice(0, SHOWN);
  const content = visible.map((each) => [each.key, ...each.requests.map(({ name, revision }) => `${name}:${revision}`)].join()).join(";");
  const { value: examined, problem } = useLoaded((stop) => examineAll(visible, stop), [content]);
  const [current, setCurrent] = useState("");
  const [opened, setOpened] = useState("");
  const [selected, setSelected] = useState(/** @type {Set<string>} */ (new Set()));
  const [dialog, setDialog] = useState(/** @type {{kind: string, chosen: Entry[], asked?: Asked, read?: Map<string, Asked[]>} | null} */ (null));
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  const access = decisionAccess();

  const at = Math.max(0, visible.findIndex((each) => each.key === current));
  const chosen = visible.filter((each) => selected.has(each.key));
  const targets = chosen.length ? chosen : visible.slice(at, at + 1);
  const toggle = (/** @type {string} */ key) => setSelected((old) => new Set(old.has(key) ? [...old].filter((each) => each !== key) : [...old, key]));
  const move = (/** @type {number} */ step) => {
    const next = visible[Math.min(visible.length - 1, Math.max(0, current ? at + step : 0))];
    setCurrent(next?.key ?? "");
    /** @type {HTMLElement | null | undefined} */ (list.current?.querySelector(`[data-key="${CSS.escape(next?.key ?? "")}"]`))?.focus();
  };
  const ask = (/** @type {string} */ kind, /** @type {Entry[]} */ some) => some.length && some.every(({ key }) => examined?.has(key)) && setDialog({ kind, chosen: some });
  const accept = () => access.accept.allowed && ask("accept", targets);
  const denial = (/** @type {Entry[]} */ some) => (some.some(({ cluster }) => cluster?.state === "Waiting") ? access.accept : access.approve);
  const deny = () => denial(targets).allowed && ask("deny", targets);
  useKeys(
    [
      { keys: "j", label: "Next", run: () => move(1) },
      { keys: "k", label: "Previous", run: () => move(-1) },
      { keys: "x", label: "Select", run: () => visible[at] && toggle(visible[at].key) },
      { keys: "o", label: "Show the details", run: () => setOpened(opened === visible[at]?.key ? "" : (visible[at]?.key ?? "")) },
      { keys: "a", label: "Accept and approve", run: accept },
      { keys: "d", label: "Deny", run: deny },
    ],
    [content, current, opened, selected, examined, access.accept.allowed, access.approve.allowed],
  );

  const { select = "", do: wanted = "" } = route.value.params;
  useRequest(async (stop) => {
    if (!select || !loaded.value || !access.accept.known || !access.approve.known) return;
    const named = (/** @type {string} */ key) => entries.find((each) => each.key === key) ?? { key, cluster: clusters.get(key), requests: [], since: NaN };
    const found = select.split(",").map(named).filter(({ cluster }) => cluster);
    const { allowed, reason } = access.accept;
    const read = await examineAll(found, stop);
    setParams({ select: undefined, do: undefined });
    if (allowed && found.length) setDialog({ kind: wanted, chosen: found, read });
    else notify(reason || "There is no cluster of this name.", true);
  }, [select, wanted, loaded.value, access.accept.known, access.approve.known]);

  const close = () => (setDialog(null), setSelected(new Set()));
  const row = (/** @type {Entry} */ entry) => {
    const { key, cluster } = entry;
    const asked = examined?.get(key);
    const named = shown(cluster?.name ?? entry.requests[0].name);
    return html`<li key=${key} data-key=${key} data-testid="entry" class=${`entry ${key === current ? "current" : ""}`} tabIndex=${-1} onFocus=${() => setCurrent(key)}>
      <div class="line">
        <input type="checkbox" aria-label=${`Select ${named}`} checked=${selected.has(key)} onChange=${() => toggle(key)} />
        <strong>${cluster ? html`<a href=${href("cluster", [cluster.name])}>${named}</a>` : named}</strong>
        ${cluster && html`<${StateBadge} state=${cluster.state} />`}
        <span class="muted">waits <${Ago} at=${entry.since} /></span>
        <${Verdict} entry=${entry} asked=${asked} />
        <span class="grow"></span>
        <${Button} kind="small" testid="details" label=${`Details of ${named}`} pressed=${opened === key} onClick=${() => setOpened(opened === key ? "" : key)}>Details<//>
        ${cluster && html`<${Button} kind="small" testid="accept" access=${access.accept} label=${`Accept ${named}`} onClick=${() => ask("accept", [entry])}>Accept<//>`}
        <${Button} kind="small danger" testid="deny" access=${denial([entry])} label=${`Deny ${named}`} onClick=${() => ask("deny", [entry])}>Deny<//>
      </div>
      ${opened === key && asked && html`<${Details} entry=${entry} asked=${asked} access=${access.approve} onApprove=${(/** @type {Asked} */ one) => setDialog({ kind: "approve", chosen: [entry], asked: one })} />`}
    </li>`;
  };
  const nobody = html`<${Empty} title=${loaded.value ? "Nobody waits" : "Reading…"}>${loaded.value && html`<p>Clusters that register, and certificate requests that no rule decides, appear here.</p>`}<//>`;
  const read = dialog?.read ?? examined;
  return html`<div class="inbox">
    ${entries.length ? html`<header class="page-head">
      <h1>Inbox</h1><span class="muted" data-testid="waiting">${counted(entries.length, "decision")} to make</span><span class="grow"></span>
      <${Button} testid="select-all" onClick=${() => setSelected(new Set(chosen.length === visible.length ? [] : visible.map((each) => each.key)))}>${chosen.length === visible.length ? "Select none" : "Select all"}<//>
      <${Button} kind="primary" testid="accept-chosen" access=${access.accept} disabled=${chosen.length ? "" : "Select clusters first (x)."} onClick=${accept}>Accept ${chosen.length || ""}<//>
      <${Button} kind="danger" testid="deny-chosen" access=${denial(targets)} disabled=${chosen.length ? "" : "Select clusters first (x)."} onClick=${deny}>Deny ${chosen.length || ""}<//>
    </header>
    <${Problem} text=${problem} />
    <ul class="entries" ref=${list} aria-label="Waiting decisions">${visible.map(row)}</ul>
    ${entries.length > SHOWN && html`<p class="muted pad">The ${SHOWN} that wait longest of ${entries.length}. For more: <code>hubctl accept --where '!accepted'</code>.</p>`}` : nobody}
    ${dialog?.kind === "accept" && html`<${AcceptDialog} chosen=${dialog.chosen.map((entry) => ({ entry, asked: read?.get(entry.key) ?? [] }))} onClose=${close} />`}
    ${dialog?.kind === "deny" && html`<${DenyDialog} chosen=${dialog.chosen} whole=${Boolean(dialog.read)} onClose=${close} />`}
    ${dialog?.asked && html`<${ApproveDialog} asked=${dialog.asked} onClose=${close}><${RequestFacts} asked=${dialog.asked} /><//>`}
  </div>`;
}
