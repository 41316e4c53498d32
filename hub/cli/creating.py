"""hubctl create bootstrap-kubeconfig: the key is made here and stays here, the hub signs it; or the hub makes a token."""

import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import click

from hub.cli.addresses import split_host, unreachable
from hub.cli.client import HubClient
from hub.cli.connection import connected
from hub.cli.failures import CommandError
from hub.cli.resources import CREDENTIALS


@dataclass(frozen=True, slots=True)
class Endpoints:
    """What is written into the file."""

    server: str
    grpc_server: str


@click.group()
def create() -> None:
    """Make a bootstrap kubeconfig for a cluster that is to join.

    \b
    Examples:
      hubctl create bootstrap-kubeconfig --cluster edge1 -o edge1.kubeconfig
      hubctl create bootstrap-kubeconfig --cluster edge1 --expires 15m -o edge1.kubeconfig
      hubctl create bootstrap-kubeconfig --cluster edge1 --token -o edge1.kubeconfig
    """


@create.command("bootstrap-kubeconfig")
@click.option("--cluster", required=True, metavar="NAME", help="The only cluster name that may join with it.")
@click.option("-o", "--output", required=True, metavar="FILE", type=click.Path(dir_okay=False), help="The file to write.")
@click.option("--server", metavar="URL", help="The hub's HTTPS address as the cluster reaches it, if not the advertised one.")
@click.option("--grpc-server", metavar="HOST:PORT", help="The hub's gRPC address as the cluster reaches it, likewise.")
@click.option("--expires", default="1h", show_default=True, metavar="DURATION", help="How long it can be used.")
@click.option("--uses", default=1, show_default=True, type=click.IntRange(1), help="How many cluster names it may admit.")
@click.option("--token", is_flag=True, help="Write a bearer token instead of a certificate: for the agent of OCM.")
@click.option("--allow-loopback", is_flag=True, help="Write addresses that lead to the hub only from this machine.")
@connected
def bootstrap_kubeconfig(client: HubClient, cluster: str, output: str, **chosen: Any) -> None:
    """Make a kubeconfig with which a cluster can join: give it to `spoke run --bootstrap-kubeconfig`.

    The private key is made here and stays in the file, whose mode is 0600; the hub sees a certificate request.

    With --token the file holds a bearer token for the HTTPS address and nothing of the gRPC address: for an unmodified agent
    of Open Cluster Management (driver csr). The hub makes the token, keeps a hash of it, and shows it this once.

    \b
    Examples:
      hubctl create bootstrap-kubeconfig --cluster edge1 -o edge1.kubeconfig
      hubctl create bootstrap-kubeconfig --cluster edge1 -o edge1.kubeconfig \\
          --server https://hub.example.org:6443 --grpc-server hub.example.org:8443
    """
    wish = Wish(_cluster(cluster), Endpoints(_https(chosen["server"]), _host_port(chosen["grpc_server"])), **_terms(chosen))
    wish.check(wish.endpoints)
    with PrivateFile(Path(output)) as file:
        content, until = create_kubeconfig(client, wish)
        file.write(content)
    click.echo(f'{output} lets cluster "{cluster}" join until {until}')
    if wish.token:
        click.echo("on the cluster: make it the key kubeconfig of the agent's secret bootstrap-hub-kubeconfig")
    else:
        click.echo(f"on the cluster: spoke run --bootstrap-kubeconfig {output}")


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line asks for; empty endpoints: what the hub advertises."""

    cluster: str
    endpoints: Endpoints
    lifetime: timedelta
    uses: int
    allow_loopback: bool
    token: bool = False

    def check(self, endpoints: Endpoints) -> None:
        """Raises CommandError unless another machine reaches them, or that does not matter."""
        if not self.allow_loopback:
            check_endpoints(endpoints)


def create_kubeconfig(client: HubClient, wish: Wish) -> tuple[bytes, str]:
    """A new credential as a kubeconfig, and until when it can be used. Raises CommandError; then no credential stays."""
    from machinery import pki  # noqa: PLC0415 - slow to import, and only needed here
    from machinery.identity import Subject  # noqa: PLC0415 - the same

    key = b"" if wish.token else pki.generate_key()
    subject = Subject(common_name=f"bootstrap:{wish.cluster}")
    asked = {"token": True} if wish.token else {"request": pki.build_request(subject, key).decode("ascii")}
    made = client.request("POST", CREDENTIALS.path, _document(wish, asked))
    status = made["status"]
    endpoints = Endpoints(wish.endpoints.server or status["server"], wish.endpoints.grpc_server or status["grpcServer"])
    try:
        wish.check(replace(endpoints, grpc_server="") if wish.token else endpoints)
    except CommandError:
        with suppress(CommandError):
            client.request("DELETE", CREDENTIALS.of(made["metadata"]["name"]))
        raise
    told = {**status, "groupSuffix": client.group_suffix}
    return _kubeconfig(told, endpoints, key, wish.cluster), status["expirationTimestamp"]


def check_endpoints(endpoints: Endpoints) -> None:
    """Raises CommandError for an address that leads to the hub only from some place. Empty ones are not checked."""
    grpc_host = split_host(endpoints.grpc_server)[0] if endpoints.grpc_server else ""
    checks = (
        (urlsplit(endpoints.server).hostname or "", "https_advertised", "--server https://HOST:PORT"),
        (grpc_host, "grpc_advertised", "--grpc-server HOST:PORT"),
    )
    for host, setting, flag in checks:
        why = unreachable(host) if host else None
        if why:
            raise CommandError(
                f"{host} is {why}, so it cannot stand in a file for another machine: set the hub's {setting} "
                f"(--{setting.replace('_', '-')}) to the address that clusters reach, or give {flag} here; "
                "for an agent on this machine give --allow-loopback"
            )


def _document(wish: Wish, asked: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": CREDENTIALS.group_version,
        "kind": CREDENTIALS.kind,
        "metadata": {"generateName": "bootstrap-"},
        "spec": {
            **asked,
            "clusterName": wish.cluster,
            "uses": wish.uses,
            "expirationSeconds": round(wish.lifetime.total_seconds()),
        },
    }


def _kubeconfig(status: dict[str, Any], endpoints: Endpoints, key: bytes, cluster: str) -> bytes:
    from machinery import kubeconfig  # noqa: PLC0415 - beside the imports that it goes with
    from machinery.identity import HubId  # noqa: PLC0415 - the same
    from machinery.product import NAME  # noqa: PLC0415 - the same

    user, token = f"bootstrap-{cluster}", status.get("token")
    endpoint = kubeconfig.HubEndpoint(
        endpoints.grpc_server, HubId(status["hubID"]), cluster_name=cluster, group_suffix=status["groupSuffix"]
    )
    entry = kubeconfig.ClusterEntry(
        name=NAME,
        server=endpoints.server,
        certificate_authority=status["certificateAuthority"].encode("ascii"),
        endpoint=None if token else endpoint,
    )
    if token:
        return kubeconfig.write_token_kubeconfig(entry, token, user=user)
    credential = kubeconfig.Credential(chain=status["certificate"].encode("ascii"), key=key)
    return kubeconfig.write_kubeconfig(entry, credential, user=user)


class PrivateFile:
    """A file that only its owner reads, in place once the block ends well; nothing stays of one that does not."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Self:
        try:
            descriptor, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
        except OSError as error:
            raise CommandError(f"{self._path} cannot be written: {error.strerror}") from None
        self._descriptor, self._name = descriptor, name
        return self

    def write(self, content: bytes) -> None:
        with os.fdopen(os.dup(self._descriptor), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        os.close(self._descriptor)
        if kind is not None:
            Path(self._name).unlink(missing_ok=True)
            return
        Path(self._name).replace(self._path)


def _cluster(name: str) -> str:
    from machinery.errors import InvalidError  # noqa: PLC0415 - beside the import that raises it
    from machinery.identity import cluster_name  # noqa: PLC0415 - only needed here

    try:
        return cluster_name(name)
    except InvalidError as error:
        raise CommandError(error.message, code=2) from None


def _terms(chosen: dict[str, Any]) -> dict[str, Any]:
    lifetime = _lifetime(chosen["expires"])
    return {"lifetime": lifetime, "uses": chosen["uses"], "allow_loopback": chosen["allow_loopback"], "token": chosen["token"]}


def _https(server: str | None) -> str:
    if not server:
        return ""
    parts = urlsplit(server)
    try:
        good = parts.scheme == "https" and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or parts.username or parts.query or parts.fragment:
        raise CommandError(f'--server "{server}" is not an address: write https://HOST:PORT', code=2)
    return server.rstrip("/")


def _host_port(address: str | None) -> str:
    if not address:
        return ""
    try:
        host, port = split_host(address)
    except ValueError:
        host, port = "", None
    if not host or port is None:
        raise CommandError(f'--grpc-server "{address}" is not an address: write HOST:PORT', code=2)
    return address


def _lifetime(text: str) -> timedelta:
    from machinery.durations import parse_duration  # noqa: PLC0415 - only needed here

    try:
        lifetime = parse_duration(text)
    except ValueError as error:
        raise CommandError(f"--expires {error}", code=2) from None
    if lifetime < timedelta(seconds=1):
        raise CommandError(f'--expires "{text}" is over before it begins: give at least 1s', code=2)
    return lifetime
