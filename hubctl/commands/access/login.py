"""hubctl login and logout: a kubeconfig without secrets for a user of an external identity provider."""

import shutil
import sys
from pathlib import Path
from typing import Any

import click

from hubctl.auth.credential_cache import TOKENS, forget_all
from hubctl.auth.token_sources import TokenSource, current_token, new_token, source_of, source_options, token_piped
from hubctl.client.connection import kubeconfig_path, load_kubeconfig, root_option
from hubctl.client.token_exchange import AuthenticatorReference, LoginKey, exchanged
from hubctl.commands.access.credential import authority_in, wallet_of
from hubctl.errors import CommandError
from hubctl.output.files import OVERWRITE, only_user, output_file
from machinery.client.exec_credential import AskedCluster, ExecUser, ToldCredential
from machinery.client.kubeconfig import ClusterEntry, Kubeconfig, read_kubeconfig, write_exec_kubeconfig
from machinery.errors import InvalidError
from machinery.product import GROUP_SUFFIX, NAME

HINT = "hubctl is the plug-in that logs in to the hub: install it, and put it on the PATH"


@click.command("login")
@click.option(
    "--authenticator", required=True, metavar="KIND/NAME", help="Who knows it: jwt/NAME, webhook/NAME, serviceaccount."
)
@source_options
@click.option(
    "--token-stdin", is_flag=True, help="The token comes on the standard input, and is kept (0600) until `hubctl logout`."
)
@click.option("--no-browser", is_flag=True, help="Only show the address to open.")
@click.option("--server", metavar="URL", help="The hub's HTTPS address. Without it: that of the kubeconfig in use.")
@click.option("--certificate-authority", metavar="FILE", help="The hub's CA in PEM; needed with --server.")
@click.option("--group-suffix", metavar="DOMAIN", help="What the hub's API groups end in, with --server, if not the default.")
@click.option("-o", "--output", required=True, metavar="FILE", type=click.Path(dir_okay=False), help="The kubeconfig to write.")
@OVERWRITE
@click.option("--kubeconfig", metavar="FILE", help="A kubeconfig that leads to the hub.")
@click.pass_context
def login(context: click.Context, /, authenticator: str, output: str, **chosen: Any) -> None:
    """Log in with a token of others, and write a kubeconfig for kubectl and hubctl.

    The hub exchanges the token for a client certificate that is good for five minutes. The kubeconfig names
    `hubctl credential`, which has a new one made when it is due. Neither token nor key stands in it, or on a command line.

    \b
    Examples:
      hubctl login --authenticator jwt/corp --oidc-issuer https://login.example.org --oidc-client-id muster -o ann.kubeconfig
      hubctl login --authenticator webhook/iam --token-stdin -o ann.kubeconfig < token
      hubctl login --authenticator serviceaccount --token-file /run/secrets/token -o robot.kubeconfig \\
          --server https://hub.example.org:6443 --certificate-authority hub.crt
    """
    file = output_file(output, is_login, overwrite=chosen["overwrite"])
    entry = _entry(chosen, chosen["kubeconfig"] or context.obj, root_option(context, "context_name"))
    suffix = entry.endpoint.group_suffix if entry.endpoint else chosen["group_suffix"] or GROUP_SUFFIX
    known = LoginKey(asked_cluster(entry), AuthenticatorReference.parse(authenticator), suffix)
    source = source_of(chosen, kept=chosen["token_stdin"])
    told = _logged_in(known, source, browser=not chosen["no_browser"])
    user = _user(told)
    with file:
        file.write(write_exec_kubeconfig(entry, plugin_of(known, source), user=user))
    click.echo(f'logged in as "{user}"; the certificate is good until {told.expires}, and is renewed from then on')
    click.echo(f"kubectl --kubeconfig {output} get managedclusters")


@click.command("logout")
@click.option("--kubeconfig", metavar="FILE", help="The kubeconfig that `hubctl login` wrote.")
@click.option("--all", "everything", is_flag=True, help="Forget every login of this user on this machine.")
@click.pass_context
def logout(context: click.Context, kubeconfig: str | None, *, everything: bool) -> None:
    """Forget certificate and tokens of a login. The certificate itself ends by itself, within five minutes.

    \b
    Examples:
      hubctl logout --kubeconfig ann.kubeconfig
      hubctl logout --all
    """
    if everything:
        click.echo(f"forgot {forget_all()} files")
        return
    path = kubeconfig_path(kubeconfig or context.obj)
    try:
        found = read_kubeconfig(path)
    except InvalidError as error:
        raise CommandError(error.message, code=2) from None
    known, source = login_of(found)
    click.echo("logged out" if wallet_of(known, source).forget() else "nobody was logged in")


def plugin_of(known: LoginKey, source: TokenSource) -> ExecUser:
    """`hubctl credential` as the exec plug-in of a kubeconfig; with hubctl's own path if it is not on the PATH."""
    own = Path(sys.argv[0])
    on_path = shutil.which("hubctl")
    command = ("hubctl",) if on_path else (str(own.absolute()),) if own.name == "hubctl" else (sys.executable, "-m", "hubctl")
    suffix = ("--group-suffix", known.group_suffix) if known.group_suffix != GROUP_SUFFIX else ()
    arguments = (*command[1:], "credential", "--authenticator", str(known.authenticator), *source.flags(), *suffix)
    return ExecUser(command[0], arguments, install_hint=HINT)


def login_of(found: Kubeconfig) -> tuple[LoginKey, TokenSource]:
    """Parse the login in a kubeconfig of `hubctl login`. Raises CommandError."""
    from hubctl.commands.access.credential import credential  # noqa: PLC0415 - it is read as its own command line

    arguments = found.plugin.arguments if found.plugin is not None else ()
    if "credential" not in arguments:
        raise CommandError(f"kubeconfig {found.source} is none that `hubctl login` wrote", code=2)
    told = arguments[arguments.index("credential") + 1 :]
    chosen = credential.make_context("credential", list(told), resilient_parsing=False).params
    known = LoginKey(
        asked_cluster(found.cluster), AuthenticatorReference.parse(chosen["authenticator"]), chosen["group_suffix"]
    )
    return known, source_of(chosen, kept=bool(chosen["token_kept"]))


def asked_cluster(entry: ClusterEntry) -> AskedCluster:
    return AskedCluster(entry.server, entry.certificate_authority, entry.proxy_url, entry.tls_server_name)


def _entry(chosen: dict[str, Any], kubeconfig: str | None, context_name: str | None) -> ClusterEntry:
    server, authority = chosen["server"], chosen["certificate_authority"]
    if not server:
        return load_kubeconfig(kubeconfig, context_name).cluster
    if not server.startswith("https://"):
        raise CommandError(f'--server "{server}" is not an address: write https://HOST:PORT', code=2)
    if not authority:
        raise CommandError("--server needs --certificate-authority: the CA by which the hub is verified", code=2)
    return ClusterEntry(NAME, server.rstrip("/"), authority_in(authority))


def _logged_in(known: LoginKey, source: TokenSource, *, browser: bool) -> ToldCredential:
    wallet = wallet_of(known, source)
    wallet.forget()
    if source.kept:
        wallet.write(TOKENS, {"token": token_piped()})
    try:
        if source.kept or source.file is not None:
            token = current_token(source, wallet, 0.0)
        else:
            token = new_token(source, wallet, _show, browser=browser)
        return exchanged(known, token, wallet)
    except CommandError:
        wallet.forget()
        raise


def _show(address: str) -> None:
    click.echo(f"log in at: {address}", err=True)


def _user(told: ToldCredential) -> str:
    from machinery import pki  # noqa: PLC0415 - slow to import

    return pki.parse_certificate(told.chain.encode()).subject.common_name


def is_login(documents: list[Any]) -> bool:
    """Whether the documents are a file that this command wrote, or empty."""
    user = (only_user(documents) or {}).get("user")
    plugin = user.get("exec") if isinstance(user, dict) else None
    return not documents or (isinstance(plugin, dict) and "credential" in (plugin.get("args") or []))
