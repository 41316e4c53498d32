// @ts-check
/** The fleet as of a moment, its differences to another one, and what came before a cluster ceased to be available. */
import { Button, StateBadge } from "../components/basics.js";
import { clusterOf } from "../core/cluster.js";
import { counted, duration, moment, timeOf } from "../core/format.js";
import { href, route, setParams } from "../core/router.js";
import { clusters, loaded } from "../core/store.js";
import { html, useEffect, useMemo, useState } from "../core/ui.js";
import { statusWords } from "../parts/availability.js";
import { Field, Problem, Rows, Section, shown, useLoaded } from "../parts/blocks.js";
import { before, changedBetween, clustersAt, countsAt, differencesOf, momentOf, transitionsBefore } from "../parts/past.js";
import { Differences } from "../parts/records.js";

const HOUR = 3600e3;
const RANGES = [["1 hour", HOUR], ["24 hours", 24 * HOUR], ["7 days", 168 * HOUR], ["30 days", 720 * HOUR]];
const STEPS = 1000;
const PAUSE = 250;
const TILES = [
  { title: "Available", where: 'accepted && available == "True"', is: (/** @type {any} */ one) => one.accepted && one.available === "True" },
  { title: "Unavailable", where: 'accepted && available == "False"', is: (/** @type {any} */ one) => one.accepted && one.available === "False" },
  { title: "Unknown", where: 'accepted && available == "Unknown"', is: (/** @type {any} */ one) => one.accepted && one.available === "Unknown" },
  { title: "Never reported", where: "accepted && !has(available)", is: (/** @type {any} */ one) => one.accepted && one.available === "" },
  { title: "Not accepted", where: "!accepted", is: (/** @type {any} */ one) => !one.accepted },
];

/** @param {number} at @returns {string} for an input of type datetime-local */
const local = (at) => new Date(at - new Date(at).getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
const iso = (/** @type {number} */ at) => new Date(at).toISOString();

/** A moment with a slider. @param {{label: string, at: number, range: number, end: number, onChange: (at: number) => void, testid: string}} props */
function Moment({ label, at, range, end, onChange, testid }) {
  const [shownAt, setShown] = useState(at);
  useEffect(() => setShown(at), [at]);
  useEffect(() => {
    if (shownAt === at) return undefined;
    const timer = setTimeout(() => onChange(shownAt), PAUSE);
    return () => clearTimeout(timer);
  }, [shownAt]);
  const place = Math.round(STEPS * (1 - (end - shownAt) / range));
  return html`<div class="moment">
    <${Field} label=${label}><input type="datetime-local" step="1" value=${local(shownAt)} max=${local(end)} data-testid=${`${testid}-exact`} onChange=${(/** @type {any} */ event) => event.target.value && setShown(Math.min(end, new Date(event.target.value).getTime()))} /><//>
    <input type="range" min="0" max=${STEPS} value=${place} aria-label=${`${label}, of the last ${duration(range)}`} aria-valuetext=${moment(shownAt)} data-testid=${testid} onInput=${(/** @type {any} */ event) => setShown(Math.round(end - range * (1 - Number(event.target.value) / STEPS)))} />
    <span class="muted">${duration(end - shownAt)} ago</span>
  </div>`;
}

/** @param {{at: number}} props */
function Fleet({ at }) {
  const [tile, setTile] = useState("");
  const [more, setMore] = useState(/** @type {{items: any[], next: string} | null} */ (null));
  const where = TILES.find(({ title }) => title === tile)?.where ?? "";
  const { value: counts, problem } = useLoaded((stop) => countsAt(at, stop), [at]);
  const { value: page, problem: refused } = useLoaded(async (stop) => (setMore(null), clustersAt(at, where, "", stop)), [at, where]);
  const next = (more ?? page)?.next ?? "";
  const load = async () => {
    const found = await clustersAt(at, where, next);
    setMore({ items: [...(more?.items ?? []), ...found.items], next: found.next });
  };
  const rows = [...(page?.items ?? []), ...(more?.items ?? [])].map((document) => {
    const cluster = clusterOf(document);
    return [html`<a href=${href("cluster", [cluster.name], { at: iso(at) })}>${shown(cluster.name)}</a>`, html`<${StateBadge} state=${cluster.state} />`, cluster.reason, duration(at - cluster.since), cluster.set, cluster.version];
  });
  return html`<${Section} title=${`The fleet at ${moment(at)}`} testid="fleet-then"><${Problem} text=${problem || refused} />
    <div class="then">${TILES.map(({ title, is }) => html`<${Button} key=${title} testid=${`then-${title.toLowerCase().replaceAll(" ", "-")}`} pressed=${tile === title} onClick=${() => setTile(tile === title ? "" : title)}><strong>${(counts ?? []).filter(is).reduce((sum, { count }) => sum + count, 0)}</strong> ${title}<//>`)}</div>
    <${Rows} label="Clusters at this time" titles=${["Name", "State", "Reason", "For", "Set", "Version"]} rows=${rows} />
    ${next && html`<p class="pad"><${Button} onClick=${load}>More<//></p>`}<//>`;
}

/** Changes of availability in the range before a moment. @param {{at: number, range: number}} props */
function Changes({ at, range }) {
  const { value, problem } = useLoaded((stop) => transitionsBefore(at, range, stop), [at, range]);
  const rows = (value ?? []).map(({ time, from, to, reason, metadata: { namespace } }) => [
    moment(timeOf(time)), html`<a href=${href("cluster", [namespace], { at: time })}>${shown(namespace)}</a>`, `${statusWords(from ?? "")} → ${to ? statusWords(to) : "Deleted"}`, reason,
    to === "True" ? "" : html`<a href=${href("time", [], { cluster: namespace, at: time })}>What came before</a>`,
  ]);
  const words = RANGES.find(([, length]) => length === range)?.[0] ?? duration(range);
  return html`<div class="changes"><${Section} title=${`Changes of availability, last ${words}`} count=${value ? rows.length : undefined} testid="changes"><${Problem} text=${problem} />
    ${value && html`<${Rows} label="Changes of availability" titles=${["Time", "Cluster", "Change", "Reason", ""]} rows=${rows} />`}
    ${rows.length >= 100 && html`<p class="muted pad">The newest 100. For more: <code>hubctl get clustertransitions -A</code>.</p>`}<//></div>`;
}

/** @param {{name: string, from: number, to: number}} props */
function OneDifference({ name, from, to }) {
  const { value, problem } = useLoaded(() => differencesOf(name, from, to), [name, from, to]);
  return html`<${Problem} text=${problem} />${value && html`<${Differences} fields=${value} />`}`;
}

/** @param {{from: number, to: number}} props */
function Compared({ from, to }) {
  const [opened, setOpened] = useState("");
  const { value, problem } = useLoaded((stop) => changedBetween(Math.min(from, to), Math.max(from, to), stop), [from, to]);
  const found = value ?? [];
  return html`<${Section} title="Differences" count=${found.length} testid="differences"><${Problem} text=${problem} />
    ${value && !found.length && html`<p class="muted pad">No cluster differs between ${moment(Math.min(from, to))} and ${moment(Math.max(from, to))}.</p>`}
    <ul class="compared">${found.slice(0, 200).map(({ name, what }) => html`<li key=${name} data-testid="difference">
      ${what === "changed" ? html`<${Button} kind="small" label=${`changed: differences of ${name}`} pressed=${opened === name} onClick=${() => setOpened(opened === name ? "" : name)}>changed<//>` : html`<span class="tag">${what}</span>`} <a href=${href("cluster", [name], { at: iso(Math.max(from, to)) })}>${shown(name)}</a>
      ${opened === name && html`<${OneDifference} name=${name} from=${Math.min(from, to)} to=${Math.max(from, to)} />`}</li>`)}</ul>
    ${found.length > 200 && html`<p class="muted pad">The first 200 of ${found.length}.</p>`}<//>`;
}

/** @param {{name: string, at: number}} props */
function Before({ name, at }) {
  const [span, setSpan] = useState(HOUR);
  const { value, problem } = useLoaded((stop) => before(name, at, span, stop), [name, at, span]);
  const choice = html`<${Field} label="Before it"><select value=${span} onChange=${(/** @type {any} */ event) => setSpan(Number(event.target.value))}>${RANGES.slice(0, 2).map(([words, length]) => html`<option value=${length}>${words}</option>`)}</select><//>`;
  return html`<${Section} title=${`What came before ${moment(at)} at ${name}`} testid="before" aside=${choice}><${Problem} text=${problem} />
    ${value && html`<p class="pad" data-testid="also">${value.also.length ? html`${counted(value.also.length, "other cluster")} ceased to be available in the same time: ${value.also.slice(0, 20).map((each) => html`<a href=${href("cluster", [each], { at: iso(at) })}>${each}</a> `)}` : "No other cluster ceased to be available in the same time."}</p>
      <${Rows} label="What came before" none="No record of this time." titles=${["Time", "Source", "By", "What"]} rows=${value.entries.map((each) => [moment(each.at), each.source, each.by, each.text])} />
      ${value.missing.map((text) => html`<p class="muted pad" key=${text}>Not shown: ${text}</p>`)}`}<//>`;
}

/** @param {{at: string, to: string}} props `at`: the moment that is shown; `to`: the one that it is compared with */
export function TimePage({ at, to }) {
  const { range: chosen = "", cluster = "" } = route.value.params;
  const [end] = useState(Date.now());
  const range = Number(chosen) || 24 * HOUR;
  const given = useMemo(() => momentOf(at), [at]);
  const here = Number.isNaN(given) ? end : Math.min(given, end);
  const compared = useMemo(() => momentOf(to), [to]);
  const there = Number.isNaN(compared) ? end : Math.min(compared, end);
  const names = loaded.value ? [...clusters.keys()].slice(0, 2000) : [];
  return html`<div class="time">
    <header class="page-head"><h1>Time</h1><span class="grow"></span>
      <${Field} label="Range"><select data-testid="range" value=${range} onChange=${(/** @type {any} */ event) => setParams({ range: event.target.value })}>${RANGES.map(([words, length]) => html`<option value=${length}>${words}</option>`)}</select><//>
      <${Button} testid="compare" pressed=${Boolean(to)} onClick=${() => setParams({ to: to ? undefined : iso(end) })}>Compare<//>
      <${Field} label="Cluster"><input list="names" value=${cluster} data-testid="cluster-name" placeholder="what came before" onChange=${(/** @type {any} */ event) => setParams({ cluster: event.target.value.trim() || undefined })} /><//>
      <datalist id="names">${names.map((each) => html`<option value=${each} />`)}</datalist>
    </header>
    ${at && Number.isNaN(given) && html`<${Problem} text=${`${at} is not a time. Write one such as 2026-11-01T12:00Z.`} />`}
    <${Moment} label="At" at=${here} range=${range} end=${end} testid="slider" onChange=${(/** @type {number} */ value) => setParams({ at: iso(value) })} />
    ${to && html`<${Moment} label="Compared with" at=${there} range=${range} end=${end} testid="slider-to" onChange=${(/** @type {number} */ value) => setParams({ to: iso(value) })} />`}
    ${cluster && html`<${Before} name=${cluster} at=${here} />`}
    ${to && html`<${Compared} from=${here} to=${there} />`}
    <${Changes} at=${here} range=${range} />
    <${Fleet} at=${here} />
  </div>`;
}
