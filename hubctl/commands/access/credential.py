"""hubctl credential: the exec plug-in in a kubeconfig of `hubctl login`, which returns a short-lived certificate."""

import json
import os
from pathlib import Path
from typing import Any

import click

from hubctl.auth.credential_cache import Wallet
from hubctl.auth.token_sources import TokenSource, current_token, source_of, source_options
from hubctl.client.token_exchange import AuthenticatorReference, LoginKey, exchanged, kept
from hubctl.errors import CommandError
from machinery.client.exec_credential import EXEC_INFO, AskedCluster, ToldCredential, read_exec_info, told_credential
from machinery.errors import InvalidError
from machinery.product import GROUP_SUFFIX
from machinery.runtime.clock import SystemClock


@click.command("credential")
@click.option(
    "--authenticator", required=True, metavar="KIND/NAME", help="Who knows it: jwt/NAME, webhook/NAME, serviceaccount."
)
@source_options
@click.option("--token-kept", is_flag=True, help="The token that `hubctl login` was given.")
@click.option("--server", metavar="URL", help="The hub, where the kubeconfig does not tell the plug-in.")
@click.option("--certificate-authority", metavar="FILE", help="The hub's CA in PEM, likewise.")
@click.option(
    "--group-suffix", default=GROUP_SUFFIX, show_default=True, metavar="DOMAIN", help="What the hub's API groups end in."
)
def credential(authenticator: str, group_suffix: str, **chosen: Any) -> None:
    """Tell a client certificate as kubectl asks for one: client.authentication.k8s.io/v1, on the standard output.

    A kubeconfig of `hubctl login` names this command. The certificate is kept, mode 0600, until a minute before its end.

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
    login = LoginKey(_cluster(chosen), AuthenticatorReference.parse(authenticator), group_suffix)
    source = source_of(chosen, kept=bool(chosen["token_kept"]))
    click.echo(json.dumps(told_credential(obtained(login, source))))


def obtained(login: LoginKey, source: TokenSource) -> ToldCredential:
    """The cached certificate, or a new one. Raises CommandError."""
    now, wallet = SystemClock().now(), wallet_of(login, source)
    token = current_token(source, wallet, now.timestamp()) if source.file is not None else None
    found = kept(wallet, now, token)
    return found or exchanged(login, token or current_token(source, wallet, now.timestamp()), wallet)


def wallet_of(login: LoginKey, source: TokenSource) -> Wallet:
    return login.wallet(*source.flags())


def _cluster(chosen: dict[str, Any]) -> AskedCluster:
    server, authority = chosen["server"], chosen["certificate_authority"]
    if bool(server) != bool(authority):
        raise CommandError("--server and --certificate-authority belong together", code=2)
    if server:
        return AskedCluster(server, authority_in(authority))
    told = os.environ.get(EXEC_INFO)
    if not told:
        raise CommandError(
            f"kubectl asks this plug-in, and says in {EXEC_INFO} for which cluster: run `hubctl login` to make a kubeconfig "
            "for it, or give --server and --certificate-authority",
            code=2,
        )
    try:
        return read_exec_info(told)
    except InvalidError as error:
        raise CommandError(error.message, code=2) from None


def authority_in(path: str) -> bytes:
    """Read the CA file. Raises CommandError."""
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise CommandError(f"--certificate-authority {path} cannot be read: {error.strerror or error}", code=2) from None
