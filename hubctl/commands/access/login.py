"""hubctl login, logout and credential: kubeconfigs without secrets for users of an external identity provider."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from hubctl.auth.identity import exec_cluster
from hubctl.auth.kubeconfig import KubeconfigFiles, option_of
from hubctl.auth.token_sources import (
    TOKENS,
    TokenSource,
    current_token,
    forget_all,
    new_token,
    source_of,
    source_options,
    token_piped,
)
from hubctl.client.token_exchange import LoginKey, checked_authenticator, exchanged, load_credential
from hubctl.errors import CommandError, usage_errors
from hubctl.files import OVERWRITE, only_user, output_file
from hubctl.options import with_options
from machinery.client.exec_credential import EXEC_INFO, ExecCluster, ExecUser, read_exec_info, written_credential
from machinery.client.kubeconfig import ClusterEntry, Kubeconfig, read_kubeconfig, write_kubeconfig
from machinery.product import GROUP_SUFFIX, NAME
from machinery.runtime.clock import SystemClock

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
        raise CommandError("--server and --certificate-authority belong together", code=2)
    if chosen["server"]:
        cluster = ExecCluster(chosen["server"], authority_in(chosen["certificate_authority"]))
    elif not os.environ.get(EXEC_INFO):
        raise CommandError(
            f"kubectl asks this plug-in, and says in {EXEC_INFO} for which cluster: run `hubctl login` to make a kubeconfig "
            "for it, or give --server and --certificate-authority",
            code=2,
        )
    else:
        with usage_errors():
            cluster = read_exec_info(os.environ[EXEC_INFO])
    login = LoginKey(cluster, checked_authenticator(authenticator), group_suffix)
    source = source_of(chosen, kept=chosen["token_kept"])
    now, cache = SystemClock().now(), login.cache(*source.flags())
    token = current_token(source, cache, now.timestamp()) if source.file is not None else None
    found = load_credential(cache, now, token)
    if found is None:
        found = exchanged(login, token or current_token(source, cache, now.timestamp()), cache)
    click.echo(json.dumps(written_credential(found)))


def authority_in(path: str) -> bytes:
    """Read the CA file. Raises CommandError."""
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise CommandError(f"--certificate-authority {path} cannot be read: {error.strerror or error}", code=2) from None


HINT = "hubctl is the plug-in that logs in to the hub: install it, and put it on the PATH"


@click.command("login")
@SOURCE
@click.option(
    "--token-stdin", is_flag=True, help="Read the token from standard input and store it (mode 0600) until `hubctl logout`."
)
@click.option("--no-browser", is_flag=True, help="Print the URL instead of opening a browser.")
@click.option("--server", metavar="URL", help="HTTPS address of the hub. Default: the one in the current kubeconfig.")
@click.option("--certificate-authority", metavar="FILE", help="CA of the hub (PEM); required with --server.")
@click.option("--group-suffix", metavar="DOMAIN", help="With --server: suffix of the hub's API groups, if not the default.")
@click.option("-o", "--output", required=True, metavar="FILE", type=click.Path(dir_okay=False), help="The kubeconfig to write.")
@OVERWRITE
@click.option("--kubeconfig", metavar="FILE", help="A kubeconfig of the hub.")
@click.pass_context
def login(context: click.Context, /, authenticator: str, output: str, **chosen: Any) -> None:
    """Log in with a token of an external issuer, and write a kubeconfig for kubectl and hubctl.

    The hub exchanges the token for a client certificate that is valid for five minutes. The kubeconfig calls `hubctl
    credential`, which gets a new certificate when needed. Neither the kubeconfig nor the command line contains the token or
    a key.

    \b
    Examples:
      hubctl login --authenticator jwt/corp --oidc-issuer https://login.example.org --oidc-client-id muster -o ann.kubeconfig
      hubctl login --authenticator webhook/iam --token-stdin -o ann.kubeconfig < token
      hubctl login --authenticator serviceaccount --token-file /run/secrets/token -o robot.kubeconfig \\
          --server https://hub.example.org:6443 --certificate-authority hub.crt
    """
    from machinery import pki  # noqa: PLC0415 - slow to import

    file = output_file(output, is_login, overwrite=chosen["overwrite"])
    entry = _cluster(context, chosen["server"], chosen["certificate_authority"])
    suffix = entry.endpoint.group_suffix if entry.endpoint else chosen["group_suffix"] or GROUP_SUFFIX
    known = LoginKey(exec_cluster(entry), checked_authenticator(authenticator), suffix)
    source = source_of(chosen, kept=chosen["token_stdin"])
    cache = known.cache(*source.flags())
    cache.forget()
    if source.kept:
        cache.write(TOKENS, {"token": token_piped()})
    try:
        issued = exchanged(known, new_token(source, cache, _show, browser=not chosen["no_browser"]), cache)
    except CommandError:
        cache.forget()
        raise
    user = pki.parse_certificate(issued.chain.encode()).subject.common_name
    with file as opened:
        opened.write(write_kubeconfig(entry, plugin_of(known, source), user=user))
    click.echo(f'logged in as "{user}"; the certificate is good until {issued.expires}, and is renewed from then on')
    click.echo(f"kubectl --kubeconfig {output} get managedclusters")


@click.command("logout")
@click.option("--kubeconfig", metavar="FILE", help="The kubeconfig that `hubctl login` wrote.")
@click.option("--all", "everything", is_flag=True, help="Delete all logins of this user on this machine.")
@click.pass_context
def logout(context: click.Context, /, *, everything: bool, **_kubeconfig: str | None) -> None:
    """Delete the certificate and tokens of a login. The certificate expires within five minutes.

    \b
    Examples:
      hubctl logout --kubeconfig ann.kubeconfig
      hubctl logout --all
    """
    if everything:
        click.echo(f"forgot {forget_all()} files")
        return
    with usage_errors():
        known, source = login_of(read_kubeconfig(KubeconfigFiles.chosen(option_of(context, "kubeconfig")).there[0]))
    click.echo("logged out" if known.cache(*source.flags()).forget() else "nobody was logged in")


def plugin_of(known: LoginKey, source: TokenSource) -> ExecUser:
    """`hubctl credential` as the exec plug-in of a kubeconfig; with hubctl's own path if it is not on the PATH."""
    own = Path(sys.argv[0])
    on_path = shutil.which("hubctl")
    command = ("hubctl",) if on_path else (str(own.absolute()),) if own.name == "hubctl" else (sys.executable, "-m", "hubctl")
    suffix = ("--group-suffix", known.group_suffix) if known.group_suffix != GROUP_SUFFIX else ()
    arguments = (*command[1:], "credential", "--authenticator", known.authenticator, *source.flags(), *suffix)
    return ExecUser(command[0], arguments, install_hint=HINT)


def login_of(found: Kubeconfig) -> tuple[LoginKey, TokenSource]:
    """Parse the login in a kubeconfig of `hubctl login`. Raises CommandError."""
    arguments = found.plugin.arguments if found.plugin is not None else ()
    if "credential" not in arguments:
        raise CommandError(f"kubeconfig {found.source} is none that `hubctl login` wrote", code=2)
    chosen = credential.make_context("credential", [*arguments[arguments.index("credential") + 1 :]]).params
    known = LoginKey(exec_cluster(found.cluster), checked_authenticator(chosen["authenticator"]), chosen["group_suffix"])
    return known, source_of(chosen, kept=chosen["token_kept"])


def _cluster(context: click.Context, server: str | None, authority: str | None) -> ClusterEntry:
    """The hub that the options name, else that of the kubeconfig. Raises CommandError."""
    if not server:
        files = KubeconfigFiles.chosen(option_of(context, "kubeconfig"))
        return files.read(option_of(context, "context_name")).cluster
    if not server.startswith("https://"):
        raise CommandError(f'--server "{server}" is not an address: write https://HOST:PORT', code=2)
    if not authority:
        raise CommandError("--server needs --certificate-authority: the CA by which the hub is verified", code=2)
    return ClusterEntry(NAME, server.rstrip("/"), authority_in(authority))


def _show(address: str) -> None:
    click.echo(f"log in at: {address}", err=True)


def is_login(documents: list[Any]) -> bool:
    """Whether the documents are a file that this command wrote, or empty."""
    user = (only_user(documents) or {}).get("user")
    plugin = user.get("exec") if isinstance(user, dict) else None
    return not documents or (isinstance(plugin, dict) and "credential" in (plugin.get("args") or []))
