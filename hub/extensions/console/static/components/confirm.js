// @ts-check
/** Confirmation of a dangerous action: its effect by dry-run, and the name typed. */
import { ApiError } from "../core/api.js";
import { html, useRequest, useState } from "../core/ui.js";
import { Button, Dialog, notify } from "./basics.js";

/**
 * @param {object} props
 * @param {string} props.title
 * @param {string} props.name what the user types
 * @param {string} props.verb on the button
 * @param {(stop: AbortSignal) => Promise<any>} props.preview sends the request as a dry run and returns a View of its effect
 * @param {() => Promise<string>} props.run sends the request and returns a message
 * @param {() => void} props.onClose
 */
export function Confirm({ title, name, verb, preview, run, onClose }) {
  const [effect, setEffect] = useState(/** @type {any} */ (null));
  const [refusal, setRefusal] = useState("");
  const [typed, setTyped] = useState("");
  const [busy, setBusy] = useState(false);
  useRequest(async (stop) => {
    try {
      setEffect(await preview(stop));
    } catch (error) {
      if (!stop.aborted) setRefusal(error instanceof ApiError ? error.message : String(error));
    }
  }, []);
  const submit = async () => {
    setBusy(true);
    try {
      notify(await run());
      onClose();
    } catch (error) {
      setRefusal(error instanceof ApiError ? error.message : String(error));
      setBusy(false);
    }
  };
  const why = typed !== name ? `Type ${name} to confirm.` : busy ? "The request is sent." : effect === null ? "The dry run has no answer yet." : "";
  return html`<${Dialog} title=${title} onClose=${onClose} testid="confirm">
    <div class="confirm">
      ${refusal ? html`<p class="problem" role="alert">${refusal}</p>` : (effect ?? html`<p class="muted">Asking the hub for the effect…</p>`)}
      <label>Type <code>${name}</code> to confirm
        <input value=${typed} autocomplete="off" spellcheck=${false} data-testid="confirm-name" onInput=${(/** @type {any} */ event) => setTyped(event.target.value)} />
      </label>
      <footer><${Button} onClick=${onClose}>Cancel<//> <${Button} kind="danger" testid="confirm-run" disabled=${why} onClick=${submit}>${verb}<//></footer>
    </div>
  <//>`;
}
