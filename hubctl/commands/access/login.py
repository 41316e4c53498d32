"""hubctl login, logout and credential: kubeconfigs without secrets for users of an external identity provider."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from hubctl.auth.identity import exec_cluster
from hubctl.auth.kubeconfig import (
    Document,
    KubeconfigFiles,
    admin_kubeconfig,
    context_names,
    edit_kubeconfig,
    has_content,
    option_of,
)
from hubctl.auth.token_sources import (
    TOKENS,
    TokenSource,
    current_token,
    forget_all,
    new_token,
    read_token,
    source_of,
    source_options,
)
from hubctl.client.token_exchange import LoginKey, checked_authenticator, exchange_token, load_credential, plugin_of
from hubctl.errors import CommandError, UsageError, usage_errors
from hubctl.files import output_file, single_user
from hubctl.options import with_options
from machinery.client.exec_credential import EXEC_INFO, ExecCluster, ExecUser, read_exec_info, written_credential
from machinery.client.kubeconfig import ClusterEntry, Kubeconfig, parsed, write_kubeconfig
from machinery.client.kubeconfig_documents import KINDS, parse_document, with_one_context
from machinery.errors import InvalidError
from machinery.product import GROUP_SUFFIX, NAME
from machinery.runtime.clock import SystemClock
from machinery.runtime.directory import PRIVATE_FILE

SOURCE = with_options(
    click.option(
        "--authenticator",
        required=True,
        metavar="KIND/NAME",
        help="Authenticator of the token: jwt/NAME, webhook/NAME or serviceaccount.",
    ),
    source_options,
)


@click.command("credential")
@SOURCE
@click.option("--token-kept", is_flag=True, help="Use the token that `hubctl login` stored.")
@click.option("--server", metavar="URL", help="HTTPS address of the hub, if the kubeconfig does not pass it to the plug-in.")
@click.option(
    "--certificate-authority", metavar="FILE", help="CA of the hub (PEM), if the kubeconfig does not pass it to the plug-in."
)
@click.option(
    "--group-suffix", default=GROUP_SUFFIX, show_default=True, metavar="DOMAIN", help="Suffix of the hub's API groups."
)
def credential(authenticator: str, group_suffix: str, **chosen: Any) -> None:
    """Print a client certificate as an ExecCredential (client.authentication.k8s.io/v1) for kubectl.

    A kubeconfig of `hubctl login` calls this command. The certificate is cached (mode 0600) until one minute before it
    expires.

    \b
    Examples:
      hubctl credential --authenticator jwt/corp --token-file /run/token

    \b
    In a kubeconfig:
      users:
      - name: ann
        user:
          exec:
            apiVersion: client.authentication.k8s.io/v1
            command: hubctl
            args: [credential, --authenticator, jwt/corp, --token-file, /run/token]
            interactiveMode: Never
            provideClusterInfo: true
    """
    if bool(chosen["server"]) != bool(chosen["certificate_authority"]):
        raise UsageError("--server and --certificate-authority belong together")
    if chosen["server"]:
        cluster = ExecCluster(chosen["server"], authority_in(chosen["certificate_authority"]))
    elif not os.environ.get(EXEC_INFO):
        raise UsageError(
            f"kubectl calls this plug-in with the cluster in {EXEC_INFO}: run `hubctl login` to write a kubeconfig, or give "
            "--server and --certificate-authority"
        )
    else:
        with usage_errors():
            cluster = read_exec_info(os.environ[EXEC_INFO])
    login = LoginKey(cluster, checked_authenticator(authenticator), group_suffix)
    source = source_of(chosen, is_stored=chosen["token_kept"])
    now, cache = SystemClock().now(), login.cache(*source.flags())
    token = current_token(source, cache, now.timestamp()) if source.file is not None else None
    found = load_credential(cache, now, token)
    if found is None:
        found = exchange_token(login, token or current_token(source, cache, now.timestamp()), cache)
    click.echo(json.dumps(written_credential(found)))


def authority_in(path: str) -> bytes:
    """Return the content of the file of --certificate-authority. Raises CommandError."""
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UsageError(f"--certificate-authority {path} cannot be read: {error.strerror or error}") from None


@click.command("login")
@SOURCE
@click.option(
    "--token-stdin", is_flag=True, help="Read the token from standard input and store it (mode 0600) until `hubctl logout`."
)
@click.option("--no-browser", is_flag=True, help="Print the URL instead of opening a browser.")
@click.option("--server", metavar="URL", help="HTTPS address of the hub. Default: that of the current context.")
@click.option("--certificate-authority", metavar="FILE", help="CA of the hub (PEM); required with --server.")
@click.option("--group-suffix", metavar="DOMAIN", help="With --server: suffix of the hub's API groups, if not the default.")
@click.option(
    "--name", metavar="NAME", help="Name of the hub in the kubeconfig. Default: its present name, or the host of --server."
)
@click.option("--keep-context", is_flag=True, help="Do not change the current context.")
@click.option("--overwrite", is_flag=True, help="Replace entries of the kubeconfig with other content, or FILE.")
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False), help="Write a kubeconfig of its own to FILE.")
@click.option("--kubeconfig", metavar="FILE", help="The kubeconfig to change. It can also name the hub.")
@click.pass_context
def login(context: click.Context, /, authenticator: str, output: str | None, **chosen: Any) -> None:
    """Log in with a token of an external issuer, and add the hub to the kubeconfig of kubectl and hubctl.

    The hub exchanges the token for a client certificate that is valid for five minutes. The kubeconfig calls `hubctl
    credential`, which gets a new certificate when needed. Neither the kubeconfig nor the command line contains the token or
    a key.

    The command adds a cluster, and a user and a context with the name USER@CLUSTER, which becomes the current context. The
    kubeconfig is that of --kubeconfig, $HUBCTL_KUBECONFIG or $KUBECONFIG, else ~/.kube/config; other entries stay as they are.

    \b
    Examples:
      hubctl login --authenticator jwt/corp --oidc-issuer https://login.example.org --oidc-client-id muster \\
          --server https://hub.example.org:6443 --certificate-authority hub.crt
      hubctl login --authenticator jwt/corp --oidc-issuer https://login.example.org --oidc-client-id muster --keep-context
      hubctl login --authenticator webhook/iam --token-stdin -o ann.kubeconfig < token
      hubctl login --authenticator serviceaccount --token-file /run/secrets/token -o robot.kubeconfig \\
          --server https://hub.example.org:6443 --certificate-authority hub.crt
    """
    from machinery import pki  # noqa: PLC0415 - slow to import

    own_file = output_file(output, is_login, overwrite=chosen["overwrite"]) if output else None
    entry = _cluster(context, chosen["server"], chosen["certificate_authority"])
    entry = replace(entry, name=chosen["name"] or entry.name)
    suffix = entry.endpoint.group_suffix if entry.endpoint else chosen["group_suffix"] or GROUP_SUFFIX
    known = LoginKey(exec_cluster(entry), checked_authenticator(authenticator), suffix)
    source = source_of(chosen, is_stored=chosen["token_stdin"])
    plugin, files = plugin_of(known, source), KubeconfigFiles.to_change(option_of(context, "kubeconfig"))
    path, overwrite = files.for_new_entries, chosen["overwrite"]
    if own_file is None:
        if path.resolve() == admin_kubeconfig().resolve():
            raise UsageError(f"a hub overwrites {path} when it starts: give another --kubeconfig FILE, or -o FILE")
        cluster = {"clusters": _entries(entry, plugin, "")["clusters"]}
        _with_entries(files.merged if has_content(path) else {}, cluster, path, overwrite=overwrite)
    cache = known.cache(*source.flags())
    cache.forget()
    if source.is_stored:
        cache.write(TOKENS, {"token": read_token()})
    try:
        issued = exchange_token(known, new_token(source, cache, _show, browser=not chosen["no_browser"]), cache)
    except CommandError:
        cache.forget()
        raise
    user = pki.parse_certificate(issued.chain.encode()).subject.common_name
    click.echo(f'logged in as "{user}"; the certificate is valid until {issued.expires}, and is renewed automatically')
    if own_file is not None:
        with own_file as opened:
            opened.write(write_kubeconfig(entry, plugin, user=user))
        click.echo(f"kubectl --kubeconfig {output} get managedclusters")
        return
    new = _entries(entry, plugin, user)
    name = new["contexts"]["name"]

    def change(document: Document) -> Document:
        current = {} if chosen["keep_context"] else {"current-context": name}
        return {**_with_entries(document, new, path, overwrite=overwrite), **current}

    edit_kubeconfig(path, change, mode=PRIVATE_FILE)
    needs_file = option_of(context, "kubeconfig") or path not in KubeconfigFiles.chosen(None).paths
    options = f"--kubeconfig {path} --context {name}" if needs_file else f"--context {name}"
    click.echo(f'context "{name}" is in {path}: hubctl {options} get clusters')


def _entries(entry: ClusterEntry, plugin: ExecUser, user: str) -> dict[str, Document]:
    name = f"{user}@{entry.name}"
    written = parse_document(write_kubeconfig(entry, plugin, user=name), "of this login")
    return {**{section: written[section][0] for section in KINDS}, "contexts": {**written["contexts"][0], "name": name}}


def _with_entries(document: Document, new: Mapping[str, Document], path: Path, *, overwrite: bool) -> Document:
    """Return a kubeconfig with the entries. Unless `overwrite`, raises CommandError if an entry exists with other content."""
    for section, entry in new.items():
        entries, kind = list(document.get(section) or ()), KINDS[section]
        found = next((each for each in entries if each.get("name") == entry["name"]), None)
        if found is None:
            document = {**document, section: [*entries, entry]}
            continue
        present: Document = found.get(kind) or {}
        if section == "clusters":
            is_same = _parsed_cluster(found, path.parent) == _parsed_cluster(entry, path.parent)
        elif section == "contexts":  # the context may also have a namespace
            is_same = entry[kind].items() <= present.items()
        else:
            is_same = present == entry[kind]
        if not is_same and not overwrite:
            ways = "choose another name for the hub with --name, or replace the entry with --overwrite"
            raise UsageError(f'{path} already has another {kind} "{entry["name"]}": {ways}')
        if not is_same:
            document = {**document, section: [entry if each is found else each for each in entries]}
    return document


def _parsed_cluster(entry: Document, folder: Path) -> ClusterEntry | None:
    document = with_one_context(entry["name"], {}, {})
    try:
        return parsed({**document, "clusters": [entry]}, source="of this login", folder=folder).cluster
    except InvalidError:
        return None


@click.command("logout")
@click.option("--kubeconfig", metavar="FILE", help="The kubeconfig that `hubctl login` wrote or changed.")
@click.option("--context", "context_name", metavar="NAME", shell_complete=context_names, help="Context of the login.")
@click.option("--all", "everything", is_flag=True, help="Delete all logins of this user on this machine.")
@click.pass_context
def logout(context: click.Context, /, *, everything: bool, **_connection: str | None) -> None:
    """Delete the certificate and tokens of a login. The certificate expires within five minutes.

    \b
    Examples:
      hubctl logout
      hubctl logout --kubeconfig ann.kubeconfig
      hubctl logout --all
    """
    if everything:
        click.echo(f"deleted {forget_all()} files")
        return
    files = KubeconfigFiles.chosen(option_of(context, "kubeconfig"))
    known, source = login_of(files.read(option_of(context, "context_name")))
    click.echo("logged out" if known.cache(*source.flags()).forget() else "already logged out")


def login_of(found: Kubeconfig) -> tuple[LoginKey, TokenSource]:
    """Parse the login in a kubeconfig of `hubctl login`. Raises CommandError."""
    arguments = found.plugin.arguments if found.plugin is not None else ()
    if "credential" not in arguments:
        raise UsageError(f'context "{found.context}" of kubeconfig {found.source} is not of `hubctl login`')
    chosen = credential.make_context("credential", [*arguments[arguments.index("credential") + 1 :]]).params
    known = LoginKey(exec_cluster(found.cluster), checked_authenticator(chosen["authenticator"]), chosen["group_suffix"])
    return known, source_of(chosen, is_stored=chosen["token_kept"])


def _cluster(context: click.Context, server: str | None, authority: str | None) -> ClusterEntry:
    """Return the hub that the options name, else the hub of the kubeconfig. Raises CommandError."""
    if not server:
        files = KubeconfigFiles.chosen(option_of(context, "kubeconfig"))
        return files.read(option_of(context, "context_name")).cluster
    if not server.startswith("https://"):
        raise UsageError(f'--server "{server}" is not an address: write https://HOST:PORT')
    if not authority:
        raise UsageError("--server needs --certificate-authority: the CA by which the hub is verified")
    return ClusterEntry(urlsplit(server).hostname or NAME, server.rstrip("/"), authority_in(authority))


def _show(address: str) -> None:
    click.echo(f"log in at: {address}", err=True)


def is_login(documents: list[Any]) -> bool:
    """Whether the documents of a file are a kubeconfig of `hubctl login`, or there are none."""
    user = (single_user(documents) or {}).get("user")
    plugin = user.get("exec") if isinstance(user, dict) else None
    return not documents or (isinstance(plugin, dict) and "credential" in (plugin.get("args") or []))
