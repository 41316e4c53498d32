// @ts-check
/** Above the table: the hub, the tiles that filter, and the bars. */
import { Ago, Button, Command, Dialog } from "../../components/basics.js";
import { Confirm } from "../../components/confirm.js";
import { can, config } from "../../core/access.js";
import { ApiError, RESOURCES, get, listAll, patch, pathOf } from "../../core/api.js";
import { STATES } from "../../core/cluster.js";
import { shortId, timeOf } from "../../core/format.js";
import { param, setParams } from "../../core/router.js";
import { clusters, now, revisions } from "../../core/store.js";
import { computed, html, signal, useEffect, useState } from "../../core/ui.js";
import { conditionFor, toggled } from "./completion.js";
import { fields } from "./question.js";
import { waiting } from "./state.js";
import { TILES, bars } from "./view.js";

/** @typedef {{replicas: any[], status: any, problem: string}} Hub `status`: of the ClusterSummary; undefined: not known */

/** How often the strip is read: while nothing happens in the fleet, only CA phases and backups can change. */
const PERIOD = { changed: 30_000, quiet: 120_000 };
const LOOK = 5000;
const FLEET = () => pathOf(RESOURCES.summaries, "fleet");
const MOST_BARS = 8;
/** Age of a backup at which the alert MusterHubBackupOld is raised. */
const OLD = 8 * 86400e3;

/** @type {import("../../core/ui.js").Signal<Hub>} */
const hub = signal(/** @type {Hub} */ ({ replicas: [], status: undefined, problem: "" }));
const releasing = signal(false);

let readAt = 0;
let seen = -1;
const revision = () => revisions.clusters.peek() + revisions.sessions.peek();

function look() {
  const waited = Date.now() - readAt;
  const period = hub.peek().problem || revision() !== seen ? PERIOD.changed : PERIOD.quiet;
  if (document.visibilityState === "visible" && waited >= period) readHub();
}

async function readHub() {
  [readAt, seen] = [Date.now(), revision()];
  const none = (/** @type {unknown} */ error) => {
    if (error instanceof ApiError && error.code === 403) return [];
    throw error;
  };
  try {
    const [replicas, summary] = await Promise.all([listAll(pathOf(RESOURCES.replicas)).catch(none), get(FLEET()).catch(none)]);
    hub.value = { replicas, status: summary.status, problem: "" };
  } catch (error) {
    hub.value = { ...hub.peek(), problem: error instanceof ApiError ? error.message : String(error) };
  }
}

/** Replicas, leader, CAs and newest backup of the hub. */
export function HubStrip() {
  const { version } = config.value;
  useEffect(() => {
    if (!version) return;
    look();
    const timer = setInterval(look, LOOK);
    return () => clearInterval(timer);
  }, [version]);
  const { replicas, status } = hub.value;
  const backup = status && (status.lastBackupTime ?? "");
  const leader = replicas.find((each) => each.status?.leader)?.metadata.name;
  const ready = replicas.filter((each) => each.status?.state === "Ready").length;
  const about = replicas.map((each) => `${each.metadata.name}: ${each.status?.state}, ${each.status?.sessions ?? 0} sessions, version ${each.status?.version}`).join("\n");
  return html`<dl class="strip" data-testid="hub">
    <div title=${about}><dt>Replicas</dt><dd class=${ready < replicas.length ? "warn" : ""}>${replicas.length ? `${ready} of ${replicas.length} ready` : "–"}</dd></div>
    <div><dt>Leader</dt><dd class=${replicas.length && !leader ? "bad" : ""} title=${leader ?? ""}>${leader ? shortId(leader) : replicas.length ? "none" : "–"}</dd></div>
    <div title="hubctl ca status"><dt>CA</dt><dd>${Object.values(status?.certificateAuthorities ?? {}).join(", ") || "–"}</dd></div>
    <div title="hub backup; the alert is raised after 8 days"><dt>Backup</dt><dd class=${backup === "" || now.value - timeOf(backup) > OLD ? "warn" : ""} data-testid="backup">${backup ? html`<${Ago} at=${timeOf(backup)} /> ago` : backup === "" ? "none" : "–"}</dd></div>
  </dl>`;
}

const counts = computed(() => {
  revisions.clusters.value;
  const waits = waiting.value;
  /** @type {Record<string, number>} */
  const found = Object.fromEntries(Object.keys(TILES).map((id) => [id, 0]));
  for (const one of clusters.values()) {
    for (const [id, tile] of Object.entries(TILES)) if (tile.selects(one, waits)) found[id] = (found[id] ?? 0) + 1;
  }
  return found;
});

const TONES = /** @type {Record<string, string>} */ ({ available: "Available", unavailable: "Unavailable", silent: "Unknown", waiting: "Waiting", revoked: "Revoked" });

/** The tiles; each one filters the table. */
export function Tiles() {
  const chosen = param("tile");
  const brake = hub.value.status?.brake ?? {};
  const choose = (/** @type {string} */ id) => setParams({ tile: chosen === id ? "" : id });
  return html`<div class="tiles" role="group" aria-label="Filters">
    <button type="button" class="tile" aria-pressed=${String(!chosen)} data-testid="tile-all" onClick=${() => choose(chosen)}><b>${clusters.size.toLocaleString("en")}</b><span>Clusters</span></button>
    ${Object.entries(TILES).map(([id, { title, about }]) => html`<button type="button" key=${id} class="tile" title=${about} data-state=${TONES[id]} data-zero=${counts.value[id] ? undefined : ""} aria-pressed=${String(chosen === id)} data-testid=${`tile-${id}`} onClick=${() => choose(id)}>
      <b>${(counts.value[id] ?? 0).toLocaleString("en")}</b><span>${title}</span></button>`)}
    <button type="button" class="tile" data-state=${brake.holds ? "Unknown" : "Available"} data-zero=${brake.holds ? undefined : ""} title="The brake postpones taints, alarms and removals when many clusters become silent at once." data-testid="tile-brake" onClick=${() => (releasing.value = true)}>
      <b>${brake.holds ? "holds" : "off"}</b><span>Brake${brake.holds ? html` since <${Ago} at=${timeOf(brake.since)} />` : ""}</span></button>
    ${releasing.value && html`<${BrakeDialog} brake=${brake} onClose=${() => (releasing.value = false)} />`}
  </div>`;
}

/** @param {{brake: any, onClose: () => void}} props */
function BrakeDialog({ brake, onClose }) {
  const [confirms, setConfirms] = useState(false);
  const body = { spec: { releaseBrake: true } };
  if (confirms) {
    const preview = async () => {
      await patch(FLEET(), body, { dryRun: "All" });
      return html`<p>The hub then taints the ${brake.silent ?? ""} silent clusters, raises alarms and marks their objects as stale, as if they had failed one by one.</p>`;
    };
    const run = async () => {
      await patch(FLEET(), body);
      await readHub();
      return "The brake is released.";
    };
    return html`<${Confirm} title="Release the brake" name="fleet" verb="Release the brake" preview=${preview} run=${run} onClose=${onClose} />`;
  }
  return html`<${Dialog} title="Brake" onClose=${onClose} testid="brake">
    <div class="confirm">
      <p>${brake.holds ? (brake.message ?? "The brake holds.") : "The brake is off. It postpones taints, alarms, stale marks and removals when many clusters become silent at once: then the cause is probably the hub or the network."}</p>
      <${Command} text="hubctl release-brake" />
      <footer><${Button} kind="danger" access=${can("patch", RESOURCES.summaries, "fleet").value} disabled=${brake.holds ? "" : "The brake is off."} onClick=${() => setConfirms(true)}>Release the brake…<//></footer>
    </div>
  <//>`;
}

/** @param {{title: string, word: string, found: import("./view.js").Bar[]}} props */
function BarList({ title, word, found }) {
  const where = param("where");
  const most = Math.max(1, ...found.map((bar) => bar.total));
  const field = fields.value.find((each) => each.name === word);
  return html`<section class="panel bars" aria-label=${title}><h2>${title}</h2><ul>
    ${found.map((bar) => {
      const condition = conditionFor(field, word, bar.name);
      const about = STATES.filter((state) => bar.states[state]).map((state) => `${bar.states[state]} ${state}`).join(", ");
      return html`<li key=${bar.name}><button type="button" title=${about} disabled=${bar.name === "others"} aria-pressed=${String(where.includes(condition))} onClick=${() => setParams({ where: toggled(where, condition) })}>
        <span class="name">${bar.name || "none"}</span>
        <span class="bar" aria-hidden="true"><span style=${{ width: `${(bar.total / most) * 100}%` }}>${STATES.map((state) => bar.states[state] && html`<i key=${state} data-state=${state} style=${{ flexGrow: bar.states[state] }}></i>`)}</span></span>
        <span class="number">${bar.total.toLocaleString("en")}</span><span class="visually-hidden">${about}</span></button></li>`;
    })}</ul></section>`;
}

const bySet = computed(() => (revisions.clusters.value, bars(clusters.values(), (one) => one.set, MOST_BARS)));
const byVersion = computed(() => (revisions.clusters.value, bars(clusters.values(), (one) => one.minor, MOST_BARS)));

/** Sets by state, and minor versions by state. */
export function Bars() {
  return html`<div class="bar-lists"><${BarList} title="Sets" word="set" found=${bySet.value} /><${BarList} title="Versions" word="version.minor" found=${byVersion.value} /></div>`;
}
