// @ts-check
/**
 * Who waits for a decision. The fleet page opens it as `#/inbox?select=a,b&do=accept` (or `do=deny`) for chosen clusters.
 *
 * The core offers (see each file):
 * - `core/ui.js`: html, signal, computed, effect, useEffect, useRef, useState, useMemo, useRequest (a request that ends with the component).
 * - `core/api.js`: get, post, patch, request, listAll, pages, pathOf(RESOURCES.x, name, subresource, namespace), TABLE, ApiError {code, reason, message, status}.
 * - `core/store.js`: clusters, sessions, requests (Maps, live), revisions.x (signals: read one to follow), rowOf(kind, name), now, loaded.
 * - `core/cluster.js`: types Cluster, Session, CertificateRequest (with `document`, the whole CSR); conditionOf, stateOf, clusterOf, STATES.
 * - `core/access.js`: can(verb, resource, name, subresource, namespace).value is {allowed, reason}; give it to Button as `access`.
 * - `core/router.js`: route.value.params, href(page, args, params), navigate, setParams.
 * - `core/keys.js`: useKeys([{keys, label, run}], inputs). `core/format.js`: duration, moment, timeOf, quantity, gibibytes, counted.
 * - `components/basics.js`: StateBadge, Ago, Button, Dialog, Command, Empty, copy, notify. Styles of these pages: `css/pages.css`.
 */
import { Empty } from "../components/basics.js";
import { html } from "../core/ui.js";

export function InboxPage() {
  return html`<${Empty} title="Inbox" />`;
}
