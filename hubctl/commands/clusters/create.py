"""hubctl create bootstrap-kubeconfig: a local key with a certificate signed by the hub, or a token created by the hub."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import click

from hubctl.client.connection import connected
from hubctl.client.http import ApiClient
from hubctl.client.resources import CREDENTIALS
from hubctl.commands.clusters.credential_options import credential_spec, grpc_address, https_address, split_host, unreachable
from hubctl.errors import CommandError
from hubctl.output.files import OVERWRITE, only_user, output_file

FILE = click.Path(dir_okay=False)
BOOTSTRAP = "bootstrap-"
"""Prefix of the user names in such files."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The addresses for the file."""

    server: str
    grpc_server: str


@click.group()
def create() -> None:
    """Make a bootstrap kubeconfig for clusters that are to join.

    \b
    Examples:
      hubctl create bootstrap-kubeconfig --cluster edge1 -o edge1.kubeconfig
      hubctl create bootstrap-kubeconfig --cluster-pattern 'shop-*' --uses 20 --expires 8h -o shops.kubeconfig
      hubctl create bootstrap-kubeconfig --cluster edge1 --token -o edge1.kubeconfig
    """


@create.command("bootstrap-kubeconfig")
@click.option("--cluster", default="", metavar="NAME", help="The only cluster name that may join with it.")
@click.option(
    "--cluster-pattern",
    "patterns",
    multiple=True,
    metavar="GLOB",
    help="Names that may join: the whole name fits, * and ? are wild. May be given again.",
)
@click.option("--cluster-set", default="", metavar="SET", help="The ManagedClusterSet that a cluster is put into.")
@click.option("-o", "--output", required=True, metavar="FILE", type=click.Path(dir_okay=False), help="The file to write.")
@click.option("--server", metavar="URL", help="The hub's HTTPS address as the cluster reaches it, if not the advertised one.")
@click.option("--grpc-server", metavar="HOST:PORT", help="The hub's gRPC address as the cluster reaches it, likewise.")
@click.option("--expires", default="", metavar="DURATION", help="How long it can be used. Default: what the hub gives (1h).")
@click.option(
    "--uses",
    default="1",
    show_default=True,
    metavar="N|unlimited",
    help="How many agents may get a certificate with it. A retry of the same agent costs nothing.",
)
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="A label that a cluster gets. May be given again.")
@click.option(
    "--attest-issuer",
    default="",
    metavar="URL",
    help="The issuer whose token a cluster must bring: `iss` in its tokens.",
)
@click.option("--attest-keys", metavar="FILE", type=FILE, help="Its keys (JWKS), if the hub cannot fetch them from there.")
@click.option("--attest-ca", metavar="FILE", type=FILE, help="The CA behind its address, in PEM, if it is a private one.")
@click.option("--attest-audience", default="", metavar="NAME", help="For whom it must be, if not urn:uuid:<the hub's id>.")
@click.option("--attest-subject", default="", metavar="GLOB", help="Its subject: system:serviceaccount:NAMESPACE:NAME.")
@OVERWRITE
@click.option("--token", is_flag=True, help="Write a bearer token instead of a certificate: for the agent of OCM.")
@click.option("--allow-loopback", is_flag=True, help="Write addresses that lead to the hub only from this machine.")
@connected
def bootstrap_kubeconfig(client: ApiClient, output: str, **chosen: Any) -> None:
    """Make a kubeconfig with which clusters can join: give it to `spoke run --bootstrap-kubeconfig`.

    Give it a --cluster, a --cluster-pattern or a --cluster-set; a set goes with either. What it gives a cluster, set and
    labels, wins over what the agent says. `hubctl get bootstrap-credentials` and `hubctl describe bootstrap-credential ID` say
    what became of it, `hubctl revoke bootstrap-credential ID` ends it.

    The private key is made here and stays in the file, whose mode is 0600; the hub sees a certificate request.

    With --attest-issuer the cluster must prove which one it is: its agent brings a token of a service account, which the hub
    checks against the issuer's keys, and the cluster's name is bound to that issuer. kubectl get --raw
    /.well-known/openid-configuration on the cluster tells the issuer, kubectl get --raw /openid/v1/jwks its keys.

    With --token the file holds a bearer token for the HTTPS address and nothing of the gRPC address: for an unmodified agent
    of Open Cluster Management (driver csr). The hub makes the token, keeps a hash of it, and shows it this once.

    \b
    Examples:
      hubctl create bootstrap-kubeconfig --cluster edge1 -o edge1.kubeconfig
      hubctl create bootstrap-kubeconfig --cluster edge1 -o edge1.kubeconfig \\
          --server https://hub.example.org:6443 --grpc-server hub.example.org:8443
      hubctl create bootstrap-kubeconfig --cluster-pattern 'shop-*' --cluster-set shops --label region=eu \\
          --uses 20 --expires 8h -o shops.kubeconfig
      hubctl create bootstrap-kubeconfig --cluster edge1 --attest-issuer https://kubernetes.default.svc.cluster.local \\
          --attest-keys edge1-jwks.json -o edge1.kubeconfig
      hubctl create bootstrap-kubeconfig --cluster-set lab --uses unlimited --token -o lab.kubeconfig
    """
    wanted = NewCredential.of(chosen)
    if not (wanted.cluster or wanted.spec.get("clusterNames") or wanted.spec.get("clusterSet")):
        raise CommandError("say who may join: --cluster NAME, --cluster-pattern GLOB or --cluster-set SET", code=2)
    if wanted.cluster and chosen["patterns"]:
        raise CommandError("give --cluster or --cluster-pattern, not both", code=2)
    wanted.check(wanted.endpoints)
    with output_file(output, is_bootstrap, overwrite=chosen["overwrite"]) as file:
        content, until = create_kubeconfig(client, wanted)
        file.write(content)
    click.echo(f"{output} lets {wanted.whom} join until {until}")
    if chosen["token"]:
        click.echo("on the cluster: make it the key kubeconfig of the agent's secret bootstrap-hub-kubeconfig")
    else:
        click.echo(f"on the cluster: spoke run --bootstrap-kubeconfig {output}")


@dataclass(frozen=True, slots=True)
class NewCredential:
    """The credential to create. Empty endpoints: the ones that the hub advertises."""

    spec: Mapping[str, Any]
    endpoints: Endpoints
    allow_loopback: bool

    @classmethod
    def of(cls, chosen: Mapping[str, Any]) -> "NewCredential":
        """Validate the options of the command line. Raises CommandError."""
        endpoints = Endpoints(https_address(chosen["server"]), grpc_address(chosen["grpc_server"]))
        return cls(credential_spec(chosen), endpoints, chosen["allow_loopback"])

    @property
    def cluster(self) -> str:
        return str(self.spec.get("clusterName") or "")

    @property
    def title(self) -> str:
        """The name of the user in the file, without its prefix."""
        return self.cluster or str(self.spec.get("clusterSet") or "clusters")

    @property
    def whom(self) -> str:
        """The clusters or agents that may join, as text."""
        if self.cluster:
            return f'cluster "{self.cluster}"'
        uses = self.spec.get("uses")
        count = "any number of agents" if uses is None else f"{uses} agent{'s' if uses > 1 else ''}"
        names = f" of clusters {', '.join(self.spec['clusterNames'])}" if self.spec.get("clusterNames") else ""
        return f"{count}{names}" + (f' of the set "{self.spec["clusterSet"]}"' if self.spec.get("clusterSet") else "")

    def check(self, endpoints: Endpoints) -> None:
        """Raises CommandError for an address that other machines cannot reach, unless loopback is allowed."""
        if not self.allow_loopback:
            check_endpoints(endpoints)


def is_bootstrap(documents: list[Any]) -> bool:
    """Whether the documents are a file that this command wrote, or empty."""
    user = only_user(documents)
    return not documents or (user is not None and str(user.get("name")).startswith(BOOTSTRAP))


def create_kubeconfig(client: ApiClient, wanted: NewCredential) -> tuple[bytes, str]:
    """Create a credential; return it as a kubeconfig with its expiry. Raises CommandError and then deletes the credential."""
    from machinery import pki  # noqa: PLC0415 - slow to import, and only needed here
    from machinery.client import kubeconfig  # noqa: PLC0415 - the same
    from machinery.identity import CertificateSubject, HubId  # noqa: PLC0415 - the same
    from machinery.product import NAME  # noqa: PLC0415 - the same

    by_token = bool(wanted.spec.get("token"))
    key = b"" if by_token else pki.generate_key()
    subject = CertificateSubject(common_name=f"bootstrap:{wanted.title}")
    asked = {} if by_token else {"request": pki.build_request(subject, key).decode("ascii")}
    kind = {"apiVersion": CREDENTIALS.group_version, "kind": CREDENTIALS.kind}
    document = {**kind, "metadata": {"generateName": "bootstrap-"}, "spec": {**asked, **wanted.spec}}
    made = client.request("POST", CREDENTIALS.path, document)
    status = made["status"]
    endpoints = Endpoints(wanted.endpoints.server or status["server"], wanted.endpoints.grpc_server or status["grpcServer"])
    try:
        wanted.check(replace(endpoints, grpc_server="") if by_token else endpoints)
    except CommandError:
        with suppress(CommandError):
            client.request("DELETE", CREDENTIALS.of(made["metadata"]["name"]))
        raise
    cluster, user = wanted.cluster or None, BOOTSTRAP + wanted.title
    endpoint = kubeconfig.HubEndpoint(
        endpoints.grpc_server, HubId(status["hubID"]), cluster_name=cluster, group_suffix=client.group_suffix
    )
    entry = kubeconfig.ClusterEntry(
        name=NAME,
        server=endpoints.server,
        certificate_authority=status["certificateAuthority"].encode("ascii"),
        endpoint=None if by_token else endpoint,
        cluster_name=cluster,
    )
    if by_token:
        content = kubeconfig.write_token_kubeconfig(entry, status["token"], user=user)
    else:
        credential = kubeconfig.Credential(chain=status["certificate"].encode("ascii"), key=key)
        content = kubeconfig.write_kubeconfig(entry, credential, user=user)
    return content, status["expirationTimestamp"]


def check_endpoints(endpoints: Endpoints) -> None:
    """Raises CommandError for an address that is not reachable from everywhere. Empty ones are not checked."""
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
