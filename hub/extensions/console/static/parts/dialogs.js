// @ts-check
/** Dialogs that ask before something is written: a plain one, and those of decisions about clusters and requests. */
import { Button, Command, Dialog, notify } from "../components/basics.js";
import { counted } from "../core/format.js";
import { html, useEffect, useState } from "../core/ui.js";
import { Field, Problem, messageOf, shown } from "./blocks.js";
import { accept, decide, judge, setAccepted } from "./decisions.js";

const BOOTSTRAP = "system:bootstrap:";

/** @typedef {import("./request.js").Entry} Entry */
/** @typedef {import("./decisions.js").Asked} Asked */
/** @typedef {{text: string, bad: boolean}} Outcome */

/**
 * A question with a button. `run` returns a message.
 * @param {{title: string, verb: string, run: () => Promise<string>, onClose: () => void, disabled?: string, children?: any, testid?: string, wide?: boolean}} props
 */
export function Ask({ title, verb, run, onClose, disabled = "", children, testid = "ask", wide = false }) {
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const submit = async () => {
    setBusy(true);
    setProblem("");
    try {
      notify(await run());
      onClose();
    } catch (error) {
      setProblem(messageOf(error));
      setBusy(false);
    }
  };
  return html`<${Dialog} title=${title} onClose=${onClose} testid=${testid} wide=${wide}>
    <div class="confirm">${children}<${Problem} text=${problem} />
      <footer><${Button} onClick=${onClose}>Cancel<//> <${Button} kind="primary" testid="ask-run" disabled=${disabled || (busy ? "The request is sent." : "")} onClick=${submit}>${verb}<//></footer>
    </div><//>`;
}

/**
 * Runs `act` for each item, one after another, also after failures, until `stop`.
 * @template T @param {T[]} items @param {AbortSignal} stop @param {(item: T) => Promise<string>} act @returns {Promise<Outcome[]>}
 */
async function each(items, stop, act) {
  const outcomes = [];
  for (const item of items) {
    if (stop.aborted) break;
    try {
      outcomes.push({ text: await act(item), bad: false });
    } catch (error) {
      outcomes.push({ text: messageOf(error), bad: true });
    }
  }
  return outcomes;
}

/** A preview, then the outcome of each item. Closing it stops `act`. @param {{title: string, verb: string, count: number, act: (stop: AbortSignal) => Promise<Outcome[]>, onClose: () => void, children?: any, testid: string}} props */
function Bulk({ title, verb, count, act, onClose, children, testid }) {
  const [outcomes, setOutcomes] = useState(/** @type {Outcome[] | null} */ (null));
  const [busy, setBusy] = useState(false);
  const [stop] = useState(() => new AbortController());
  useEffect(() => () => stop.abort(), []);
  const submit = async () => {
    setBusy(true);
    const found = await act(stop.signal);
    if (stop.signal.aborted) {
      const failed = found.filter((one) => one.bad).map((one) => one.text);
      notify([`Stopped: ${found.length - failed.length} of ${count} done.`, ...failed].join(" "), true);
    } else if (found.length === 1 && !found[0].bad) {
      notify(found[0].text);
      onClose();
    } else setOutcomes(found);
  };
  if (outcomes) {
    const bad = outcomes.filter((one) => one.bad).length;
    return html`<${Dialog} title=${`${outcomes.length - bad} of ${outcomes.length} done`} onClose=${onClose} testid=${testid} wide=${true}>
      <div role="status"><ul class="outcomes">${outcomes.map((one) => html`<li class=${one.bad ? "problem" : ""}>${one.bad ? "✕" : "✓"} ${shown(one.text)}</li>`)}</ul></div><//>`;
  }
  const why = busy ? "The requests are sent." : count ? "" : "There is nothing to do.";
  return html`<${Dialog} title=${title} onClose=${onClose} testid=${testid} wide=${true}>
    <div class="confirm">${children}
      <footer><${Button} onClick=${onClose}>Cancel<//> <${Button} kind="primary" testid="bulk-run" disabled=${why} onClick=${submit}>${verb}<//></footer>
    </div><//>`;
}

/**
 * Accepts clusters and approves the requests that belong to them.
 * @param {{chosen: {entry: Entry, asked: Asked[]}[], onClose: () => void}} props
 */
export function AcceptDialog({ chosen, onClose }) {
  const judged = chosen.map(({ entry, asked }) => ({ cluster: entry.cluster, key: entry.key, ...judge(asked) }));
  const possible = judged.filter(({ cluster, refusal }) => cluster && !refusal);
  const refused = judged.filter(({ cluster, refusal }) => !cluster || refusal);
  const approvals = possible.filter(({ request }) => request).length;
  const act = (/** @type {AbortSignal} */ stop) => each(possible, stop, ({ cluster, request }) => accept(/** @type {any} */ (cluster), request));
  const sum = `${counted(possible.length, "cluster")}, ${counted(approvals, "certificate request")}`;
  return html`<${Bulk} title="Accept and approve" verb=${`Accept ${possible.length}`} count=${possible.length} act=${act} onClose=${onClose} testid="accept-dialog">
    <p><strong>${sum}</strong>. Each request is approved in the revision that you see here.</p>
    <ul class="outcomes">
      ${possible.map(({ cluster, request }) => html`<li key=${cluster?.name} data-testid="accept-item"><strong>${cluster?.name}</strong>: ${
        request ? html`accept, and approve <code>${request.document.metadata.name}</code> of <code>${shown(request.facts?.subject)}</code>, key <code>SHA256:${request.facts?.fingerprint.slice(0, 16)}…</code>` : "accept. No certificate request waits; a later one will need an approval."}</li>`)}
      ${refused.map(({ cluster, key, refusal }) => html`<li key=${key} class="problem" data-testid="accept-refused"><strong>${key}</strong>: ${cluster ? refusal : "This request belongs to no cluster that can be accepted. Approve it by its name."}</li>`)}
    </ul>
  <//>`;
}

/**
 * Denies the waiting clusters and requests of entries, with a reason. `whole`: the accepted clusters too.
 * @param {{chosen: Entry[], whole?: boolean, onClose: () => void}} props
 */
export function DenyDialog({ chosen, whole = false, onClose }) {
  const [note, setNote] = useState("");
  const requests = chosen.flatMap((entry) => entry.requests);
  const denied = chosen.flatMap(({ cluster }) => (cluster && cluster.state !== "Denied" && (whole || cluster.state === "Waiting") ? [cluster] : []));
  const without = chosen.filter((entry) => !entry.requests.length && !denied.some(({ name }) => name === entry.key));
  const credentials = [...new Set(requests.map(({ user }) => user).filter((user) => user.startsWith(BOOTSTRAP)))];
  const act = async (/** @type {AbortSignal} */ stop) => [
    ...(await each(denied, stop, async (one) => (await setAccepted(one, false, note.trim()), `${one.name} is denied.`))),
    ...(await each(requests, stop, async (one) => (await decide(one.document, "Denied", note.trim()), `The certificate request ${one.name} is denied.`))),
  ];
  const sum = [denied.length && counted(denied.length, "cluster"), requests.length && counted(requests.length, "request")].filter(Boolean).join(", ");
  return html`<${Bulk} title="Deny" verb=${`Deny ${sum}`} count=${denied.length + requests.length} act=${act} onClose=${onClose} testid="deny-dialog">
    <ul class="outcomes">
      ${denied.map(({ name, state }) => html`<li key=${name}><strong>${name}</strong>: ${state === "Waiting" ? "no approval rule accepts it any more." : "the hub ends its sessions and refuses its reports and renewals. Its certificates stay."} Accept it to undo this.</li>`)}
      ${requests.map((one) => html`<li key=${one.name}><code>${one.name}</code> of ${one.cluster || "no cluster"}, requester <code>${shown(one.user)}</code>. This is final.</li>`)}
      ${without.map((one) => html`<li key=${one.key} class="muted">${one.key}: it is denied already, and no request waits.</li>`)}
    </ul>
    ${denied.length + requests.length > 0 && html`<${Field} label="Reason, for the agent and the audit log"><input value=${note} maxLength=${500} data-testid="deny-reason" onInput=${(/** @type {any} */ event) => setNote(event.target.value)} /><//>`}
    ${credentials.length > 0 && html`<p>An agent can ask again while its bootstrap credential is valid. To prevent this:</p>
      ${credentials.slice(0, 5).map((user) => html`<${Command} key=${user} text=${`hubctl revoke bootstrap-credential ${user.slice(BOOTSTRAP.length)}`} />`)}`}
  <//>`;
}

/** Approves one request by its name, whoever made it. @param {{asked: Asked, onClose: () => void, children?: any}} props */
export function ApproveDialog({ asked, onClose, children }) {
  const name = asked.document.metadata.name;
  const run = async () => {
    await decide(asked.document, "Approved");
    return `The certificate request ${name} is approved.`;
  };
  return html`<${Ask} title=${`Approve ${name}`} verb="Approve" run=${run} onClose=${onClose} wide=${true} testid="approve-dialog">
    ${!asked.own && html`<p class="problem">This requester is not bound to this cluster alone. Compare subject and key with those of the agent.</p>`}
    ${children}
  <//>`;
}
