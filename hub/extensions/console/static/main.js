// @ts-check
/** Starts the console: the secret, the configuration, the watches, then the page of the route. */
import { Button, KeyHelp, Notices } from "./components/basics.js";
import { config, readUser, signOut, user } from "./core/access.js";
import { ApiError, configure, get } from "./core/api.js";
import { moment } from "./core/format.js";
import { useKeys } from "./core/keys.js";
import { href, navigate, returnToView, route, signIn, takeSecret } from "./core/router.js";
import { requests, revisions, stale, start, streams } from "./core/store.js";
import { setTheme, showTheme, theme } from "./core/theme.js";
import { html, render, signal, useEffect } from "./core/ui.js";
import { ClusterPage } from "./pages/cluster.js";
import { FleetPage } from "./pages/fleet.js";
import { InboxPage } from "./pages/inbox.js";
import { TimePage } from "./pages/time.js";

const PAGES = [
  { page: "fleet", title: "Fleet", key: "g f" },
  { page: "inbox", title: "Inbox", key: "g i" },
  { page: "time", title: "Time", key: "g t" },
];
const THEMES = { auto: "dark", dark: "light", light: "auto" };

/** Why the console cannot start; null: it has. */
const failure = signal(/** @type {ApiError | null} */ (null));

function Header() {
  const count = revisions.requests.value >= 0 ? requests.size : 0;
  const here = route.value.page === "cluster" ? "fleet" : route.value.page;
  const chosen = theme.value;
  return html`<header class="top">
    <a class="brand" href=${href("fleet")}><img src="icon.svg" alt="" width="20" height="20" />Muster</a>
    <nav aria-label="Pages">
      ${PAGES.map(({ page, title }) => html`<a key=${page} href=${href(page)} aria-current=${here === page ? "page" : undefined} data-testid=${`nav-${page}`}>
        ${title}${page === "inbox" && count ? html` <span class="count">${count}</span>` : ""}</a>`)}
    </nav>
    <span class="grow"></span>
    ${config.value.mode === "read-only" && html`<span class="tag" title="The hub runs with --console=read-only.">read-only</span>`}
    <span class="user" title="You, as the hub sees you" data-testid="user">${user.value}</span>
    ${config.value.signIn && html`<${Button} kind="small" testid="sign-out" onClick=${signOut}>Sign out<//>`}
    <${Button} kind="small" testid="theme" label=${`Theme: ${chosen}. Change it`} title="Theme" onClick=${() => setTheme(/** @type {any} */ (THEMES[chosen]))}>${{ auto: "◐", dark: "☾", light: "☀" }[chosen]}<//>
    <${Button} kind="small" testid="help" label="Keyboard" title="Keyboard (?)" onClick=${() => (helping.value = true)}>?<//>
  </header>`;
}

const helping = signal(false);

function StaleBanner() {
  const gone = stale.value;
  const refused = Object.entries(streams).filter(([, each]) => each.value.phase === "forbidden");
  return html`<div role="status" aria-live="polite">
    ${gone && html`<p class="banner" data-testid="stale"><strong>Not live since ${moment(gone.at)}.</strong> ${gone.why} The page reconnects by itself and shows the last known state.</p>`}
    ${refused.map(([kind, each]) => html`<p class="banner quiet" key=${kind} data-testid=${`forbidden-${kind}`}>No ${kind}: ${each.value.why}</p>`)}
    ${config.value.signIn && refused.length > 0 && html`<p class="banner quiet"><${Button} kind="small" onClick=${signIn}>Sign in again<//></p>`}
  </div>`;
}

function Page() {
  const { page, args, params } = route.value;
  useEffect(() => {
    document.title = `${args[0] ?? PAGES.find((each) => each.page === page)?.title ?? "Fleet"} – Muster`;
  }, [page, args[0]]);
  if (page === "cluster" && args[0]) return html`<${ClusterPage} key=${args[0]} name=${args[0]} at=${params.at ?? ""} />`;
  if (page === "inbox") return html`<${InboxPage} />`;
  if (page === "time") return html`<${TimePage} at=${params.at ?? ""} to=${params.to ?? ""} />`;
  return html`<${FleetPage} />`;
}

function SignIn() {
  const why = failure.value;
  const unknown = why?.code === 401 || why?.code === 403;
  if (config.value.signIn) {
    return html`<main class="sign-in" data-testid="sign-in">
      <h1>Muster</h1>
      ${!unknown && html`<p>${why?.message}</p>`}
      <${Button} kind="primary" testid="sign-in-button" onClick=${signIn}>Sign in<//>
    </main>`;
  }
  return html`<main class="sign-in" data-testid="sign-in">
    <h1>Muster</h1>
    <p>${unknown ? "The hub does not know this browser." : why?.message}</p>
    <p>Run <code>hubctl console</code> and open the URL that it prints. Each start has its own URL.</p>
    <${Button} kind="primary" onClick=${() => location.reload()}>Try again<//>
  </main>`;
}

function App() {
  useKeys(
    [
      ...PAGES.map(({ page, title, key }) => ({ keys: key, label: title, run: () => navigate(page) })),
      { keys: "?", label: "Keyboard", run: () => (helping.value = true) },
    ],
    [],
  );
  if (failure.value) return html`<${SignIn} />`;
  return html`
    <a class="skip" href="#main" onClick=${(/** @type {Event} */ event) => (event.preventDefault(), document.getElementById("main")?.focus())}>Skip to the content</a>
    <${Header} />
    <${StaleBanner} />
    <main id="main" tabIndex=${-1}>${config.value.version && html`<${Page} />`}</main>
    ${helping.value && html`<${KeyHelp} onClose=${() => (helping.value = false)} />`}
    <${Notices} />`;
}

async function boot() {
  showTheme();
  const place = document.getElementById("app");
  if (place) render(html`<${App} />`, place);
  const secret = takeSecret();
  configure(secret);
  returnToView();
  try {
    config.value = await get("console/config.json");
    configure(secret, config.value.groupSuffix);
    await readUser(); // a tab that the hub does not know must not join the worker of the others
    start(user.value);
  } catch (error) {
    failure.value = error instanceof ApiError ? error : new ApiError(0, "", String(error));
  }
}

boot();
