// @ts-check
/** Records of one cluster: its history as differences, Events, audit records, and the object as YAML. */
import { Ago, Button, copy } from "../components/basics.js";
import { RESOURCES, TABLE, get, listAll, pathOf } from "../core/api.js";
import { moment, timeOf } from "../core/format.js";
import { href } from "../core/router.js";
import { html, useState } from "../core/ui.js";
import { Field, Problem, Rows, Section, shown, useLoaded } from "./blocks.js";
import { readable, relevant, short, yaml } from "./differences.js";
import { lastSeen, rowsOf, timeParameter } from "./past.js";

const HOUR = 3600e3;
const SPANS = [["1 hour", HOUR], ["24 hours", 24 * HOUR], ["7 days", 168 * HOUR]];

/** Fields of a change, or of a difference between two times. @param {{fields: import("./differences.js").Difference[]}} props */
export function Differences({ fields }) {
  return html`<ul class="diff">${fields.map(({ path, before, after }) => html`<li key=${path} data-testid="field"><code>${shown(path)}</code>
    ${before !== undefined && html` <del>${shown(short(before, 400))}</del>`}${after !== undefined && html` <ins>${shown(short(after, 400))}</ins>`}</li>`)}</ul>`;
}

/** @param {{name: string, uid: string, until: number, live: string}} props `until`: NaN for now */
export function History({ name, until, live }) {
  const [all, setAll] = useState(false);
  const [more, setMore] = useState(/** @type {any[]} */ ([]));
  const [next, setNext] = useState(/** @type {string | null} */ (null));
  const path = pathOf(RESOURCES.clusters, name, "history");
  const bounds = { limit: 50, until: Number.isNaN(until) ? undefined : timeParameter(until) };
  const { value, problem } = useLoaded((stop) => get(path, bounds, { stop }), [name, until, more.length ? "" : live]);
  const older = next ?? value?.metadata?.continue ?? "";
  const load = async () => {
    const page = await get(path, { ...bounds, before: older });
    setMore([...more, ...(page.changes ?? [])]);
    setNext(page.metadata?.continue ?? "");
  };
  const changes = [...(value?.changes ?? []), ...more].map((each) => ({ ...each, fields: all ? (each.fields ?? []) : relevant(each.fields ?? []) }));
  const visible = changes.filter(({ fields, type }) => all || fields.length || type !== "MODIFIED");
  const toggle = html`<label><input type="checkbox" checked=${all} onChange=${() => setAll(!all)} /> all fields</label>`;
  return html`<${Section} title="History" count=${visible.length} testid="history" aside=${toggle}>
    <${Problem} text=${problem} />
    <ol class="history">${visible.map(({ revision, time, actor, type, fields, more: rest }) => html`<li key=${revision} data-testid="change">
      <p><a href=${href("cluster", [name], { at: time })} title="The cluster as of then">${moment(timeOf(time))}</a> <span class="muted">by</span> ${shown(actor)}${type !== "MODIFIED" && html` <strong>${type.toLowerCase()}</strong>`}</p>
      ${type === "MODIFIED" && html`<${Differences} fields=${fields} />`}${rest > 0 && html`<p class="muted">and ${rest} more fields</p>`}</li>`)}</ol>
    ${older ? html`<p class="pad"><${Button} onClick=${load}>Older changes<//></p>` : value?.began && html`<p class="muted pad">The hub keeps changes since ${moment(timeOf(value.began))}.</p>`}
  <//>`;
}

/** @param {{name: string, until: number, live: string}} props */
export function Events({ name, until, live }) {
  const fieldSelector = `involvedObject.kind=ManagedCluster,involvedObject.name=${name}`;
  const { value, problem } = useLoaded((stop) => listAll(pathOf(RESOURCES.events), { fieldSelector }, { stop }), [name, live]);
  const events = (value ?? []).filter((each) => !(lastSeen(each) > until)).sort((one, other) => lastSeen(other) - lastSeen(one));
  return html`<${Section} title="Events" count=${events.length} testid="events"><${Problem} text=${problem} />
    <${Rows} label="Events" none="None. The hub keeps Events for one hour." titles=${["Last seen", "Type", "Reason", "Message"]} rows=${events.map((each) => [html`<${Ago} at=${lastSeen(each)} />`, each.type, each.reason, `${each.message}${each.count > 1 ? ` (×${each.count})` : ""}`])} /><//>`;
}

/** @param {{name: string, until: number}} props */
export function Audit({ name, until }) {
  const [span, setSpan] = useState(24 * HOUR);
  const load = async (/** @type {AbortSignal} */ stop) => {
    const end = Number.isNaN(until) ? Date.now() : until;
    const fieldSelector = `name=${name},since=${timeParameter(end - span)},until=${timeParameter(end)}`;
    return rowsOf(await get(pathOf(RESOURCES.audit), { fieldSelector, sortBy: "-time", limit: 2000, includeObject: "None" }, { accept: TABLE, stop }));
  };
  const { value, problem } = useLoaded(load, [name, span, until]);
  const records = value ?? [];
  const choice = html`<${Field} label="Last"><select value=${span} onChange=${(/** @type {any} */ event) => setSpan(Number(event.target.value))}>${SPANS.map(([words, value]) => html`<option value=${value}>${words}</option>`)}</select><//>`;
  return html`<${Section} title="Audit records" count=${records.length} testid="audit" aside=${choice}><${Problem} text=${problem} />
    <${Rows} label="Audit records" none="None in this time." titles=${["Time", "User", "Verb", "Object", "Code"]} rows=${records.map((each) => [moment(timeOf(each.Time)), each.User, each.Verb, each.Object, each.Code])} />
    ${records.length >= 2000 && html`<p class="muted pad">These are the newest 2,000 of this time. For more: <code>hubctl audit --name ${name}</code>.</p>`}<//>`;
}

/** @param {{document: any}} props */
export function Yaml({ document }) {
  const text = yaml(readable(document));
  return html`<${Section} title="YAML" testid="yaml" aside=${html`<${Button} kind="small" onClick=${() => copy(text)}>Copy<//>`}>
    <pre class="scroll" tabIndex=${0} role="region" aria-label="The object as YAML">${text}</pre><//>`;
}
