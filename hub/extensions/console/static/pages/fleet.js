// @ts-check
/** All clusters. */
import { Empty } from "../components/basics.js";
import { html } from "../core/ui.js";

export function FleetPage() {
  return html`<${Empty} title="Fleet" />`;
}
