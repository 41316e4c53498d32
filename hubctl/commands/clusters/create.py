"""hubctl create bootstrap-kubeconfig: the file contains a local key and a certificate, or a token that the hub has created."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import click

from hubctl.client.connection import connected
from hubctl.client.http import ApiClient
from hubctl.client.resources import CREDENTIALS
from hubctl.commands.clusters.credential_options import check_endpoints, credential_spec, grpc_address, https_address
from hubctl.errors import CommandError, UsageError
from hubctl.files import OVERWRITE, output_file, single_user
from hubctl.options import text_option, with_options
from machinery.product import NAME

FILE = click.Path(dir_okay=False)
BOOTSTRAP = "bootstrap-"
"""Prefix of the user names in bootstrap kubeconfigs."""
ENDPOINTS = with_options(
    click.option(
        "--server", metavar="URL", help="HTTPS address at which the cluster reaches the hub. Default: the advertised address."
    ),
    click.option(
        "--grpc-server",
        metavar="HOST:PORT",
        help="gRPC address at which the cluster reaches the hub. Default: the advertised address.",
    ),
    text_option("--expires", "DURATION", "Validity of the bootstrap credential. Default: set by the hub (1h)."),
)
"""Adds the options that `endpoints_of` reads, and the option for the validity of the credential."""


@click.group()
def create() -> None:
    """Create a bootstrap kubeconfig with which clusters join.

    \b
    Examples:
      hubctl create bootstrap-kubeconfig --cluster edge1 -o edge1.bootstrap
      hubctl create bootstrap-kubeconfig --cluster-pattern 'shop-*' --uses 20 --expires 8h -o shops.bootstrap
      hubctl create bootstrap-kubeconfig --cluster edge1 --token -o edge1.bootstrap
    """


@create.command("bootstrap-kubeconfig")
@text_option("--cluster", "NAME", "The only cluster name that may register with it.")
@click.option(
    "--cluster-pattern",
    "patterns",
    multiple=True,
    metavar="GLOB",
    help="Glob of cluster names that may register (* and ?). May be repeated.",
)
@text_option("--cluster-set", "SET", "ManagedClusterSet to which clusters are added.")
@click.option("-o", "--output", required=True, metavar="FILE", type=click.Path(dir_okay=False), help="The file to write.")
@ENDPOINTS
@click.option(
    "--uses",
    default="1",
    show_default=True,
    metavar="N|unlimited",
    help="Number of agents that may get a certificate with it. A retry of the same agent does not count.",
)
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label of the clusters. May be repeated.")
@text_option("--attest-issuer", "URL", "Issuer (`iss`) of the token with which a cluster must attest its identity.")
@click.option("--attest-keys", metavar="FILE", type=FILE, help="Keys of the issuer (JWKS), if the hub cannot fetch them.")
@click.option("--attest-ca", metavar="FILE", type=FILE, help="CA of the issuer's URL (PEM), if it is private.")
@text_option("--attest-audience", "NAME", "Audience of the token. Default: urn:uuid:<the hub's id>.")
@text_option("--attest-subject", "GLOB", "Subject of the token: system:serviceaccount:NAMESPACE:NAME.")
@OVERWRITE
@click.option("--token", is_flag=True, help="Write a bearer token instead of a certificate, for OCM's agent.")
@click.option("--allow-loopback", is_flag=True, help="Allow addresses that are reachable only from this machine.")
@connected
def bootstrap_kubeconfig(client: ApiClient, output: str, **chosen: Any) -> None:
    """Create a bootstrap kubeconfig for `spoke run --bootstrap-kubeconfig`.

    Set --cluster, --cluster-pattern or --cluster-set; a set can be combined with a name or pattern. Cluster set and labels of
    the credential override those of the agent. `hubctl get bootstrap-credentials` and `hubctl describe bootstrap-credential ID`
    show the uses of a credential, `hubctl revoke bootstrap-credential ID` revokes it.

    The private key is generated locally and stays in the file (mode 0600); the hub receives only a certificate request.

    With --attest-issuer the cluster must attest its identity: its agent sends a ServiceAccount token, and the hub verifies the
    token with the issuer's keys and binds the cluster name to this issuer. On the cluster, kubectl get --raw
    /.well-known/openid-configuration shows the issuer, kubectl get --raw /openid/v1/jwks its keys.

    With --token the file contains a bearer token for the HTTPS address, and no gRPC address. Use it for an unmodified agent of
    Open Cluster Management (driver csr). The hub creates the token, stores only its hash, and returns it once.

    \b
    Examples:
      hubctl create bootstrap-kubeconfig --cluster edge1 -o edge1.bootstrap
      hubctl create bootstrap-kubeconfig --cluster edge1 -o edge1.bootstrap \\
          --server https://hub.example.org:6443 --grpc-server hub.example.org:8443
      hubctl create bootstrap-kubeconfig --cluster-pattern 'shop-*' --cluster-set shops --label region=eu \\
          --uses 20 --expires 8h -o shops.bootstrap
      hubctl create bootstrap-kubeconfig --cluster edge1 --attest-issuer https://kubernetes.default.svc.cluster.local \\
          --attest-keys edge1-jwks.json -o edge1.bootstrap
      hubctl create bootstrap-kubeconfig --cluster-set lab --uses unlimited --token -o lab.bootstrap
    """
    spec = credential_spec(chosen)
    if not (spec.get("clusterName") or spec.get("clusterNames") or spec.get("clusterSet")):
        raise UsageError("specify the clusters that may join: --cluster NAME, --cluster-pattern GLOB or --cluster-set SET")
    if spec.get("clusterName") and chosen["patterns"]:
        raise UsageError("give --cluster or --cluster-pattern, not both")
    endpoints = endpoints_of(chosen)
    with output_file(output, is_bootstrap, overwrite=chosen["overwrite"]) as file:
        content, until = create_kubeconfig(client, spec, endpoints, allow_loopback=chosen["allow_loopback"])
        file.write(content)
    click.echo(f"{output} allows {_admitted(spec)} to join until {until}")
    if chosen["token"]:
        click.echo("on the cluster: store it as the key kubeconfig of the agent's Secret bootstrap-hub-kubeconfig")
    else:
        click.echo(f"on the cluster: spoke run --bootstrap-kubeconfig {output}")


def _admitted(spec: Mapping[str, Any]) -> str:
    if "clusterName" in spec:
        return f'cluster "{spec["clusterName"]}"'
    uses = spec.get("uses")
    count = "any number of agents" if uses is None else f"{uses} agent{'s' if uses > 1 else ''}"
    names = f" of clusters {', '.join(spec['clusterNames'])}" if "clusterNames" in spec else ""
    return f"{count}{names}" + (f' of the set "{spec["clusterSet"]}"' if "clusterSet" in spec else "")


def is_bootstrap(documents: list[Any]) -> bool:
    """Whether the documents of a file are a bootstrap kubeconfig, or there are none."""
    user = single_user(documents)
    return not documents or (user is not None and str(user.get("name")).startswith(BOOTSTRAP))


def endpoints_of(chosen: Mapping[str, Any]) -> tuple[str, str]:
    """Return the HTTPS and gRPC addresses in the options; empty: the hub's addresses.

    Raises CommandError for an invalid address and, unless --allow-loopback, for an address that other machines cannot reach.
    """
    endpoints = https_address(chosen["server"]), grpc_address(chosen["grpc_server"])
    if not chosen["allow_loopback"]:
        check_endpoints(*endpoints)
    return endpoints


def create_kubeconfig(
    client: ApiClient, spec: Mapping[str, Any], endpoints: tuple[str, str], *, allow_loopback: bool
) -> tuple[bytes, str]:
    """Create a credential. Return it as a kubeconfig, with its expiry. `endpoints`: a result of `endpoints_of`.

    Unless `allow_loopback`: if other machines cannot use the hub's addresses, delete the credential and raise CommandError.
    """
    from machinery import pki  # noqa: PLC0415 - slow to import, and only needed here
    from machinery.client import kubeconfig  # noqa: PLC0415 - the same
    from machinery.identity import CertificateSubject, HubId  # noqa: PLC0415 - the same

    cluster, by_token = spec.get("clusterName"), bool(spec.get("token"))
    title = str(cluster or spec.get("clusterSet") or "clusters")
    key = b"" if by_token else pki.generate_key()
    if not by_token:
        subject = CertificateSubject(common_name=f"bootstrap:{title}")
        spec = {"request": pki.build_request(subject, key).decode("ascii"), **spec}
    kind = {"apiVersion": CREDENTIALS.group_version, "kind": CREDENTIALS.kind}
    made = client.request("POST", CREDENTIALS.path, {**kind, "metadata": {"generateName": "bootstrap-"}, "spec": spec})
    status = made["status"]
    server, grpc_server = endpoints[0] or status["server"], endpoints[1] or status["grpcServer"]
    try:
        if not allow_loopback:
            check_endpoints(server, "" if by_token else grpc_server)
    except CommandError:
        with suppress(CommandError):
            client.request("DELETE", CREDENTIALS.of(made["metadata"]["name"]))
        raise
    hub = HubId(status["hubID"])
    endpoint = kubeconfig.HubEndpoint(grpc_server, hub, cluster_name=cluster, group_suffix=client.group_suffix)
    entry = kubeconfig.ClusterEntry(
        name=NAME,
        server=server,
        certificate_authority=status["certificateAuthority"].encode("ascii"),
        endpoint=None if by_token else endpoint,
        cluster_name=cluster,
    )
    identity = status["token"] if by_token else kubeconfig.Credential(status["certificate"].encode("ascii"), key)
    return kubeconfig.write_kubeconfig(entry, identity, user=BOOTSTRAP + title), status["expirationTimestamp"]
