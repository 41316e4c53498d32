"""hubctl join: the manifests with which a cluster joins, printed or applied.

`agent.yaml` is the agent's chart as rendered by Helm, with placeholders; `make charts` writes it, and a test compares both.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hubctl.client.connection import client_of, connected
from hubctl.client.http import ApiClient
from hubctl.commands.clusters.create import NewCredential, create_kubeconfig
from hubctl.commands.objects.apply import Applying
from hubctl.errors import CommandError
from hubctl.output.files import OVERWRITE, PrivateFile, output_file

MANIFESTS = Path(__file__).with_name("agent.yaml")
NAMESPACE, IMAGE = "the-agents-namespace", "the-agents-image:tag"
"""Placeholders in the manifests."""
SECRET, KEY = "bootstrap-hub-kubeconfig", "kubeconfig"
DEFAULT_NAMESPACE = "open-cluster-management-agent"
DEFAULT_IMAGE = "muster/spoke"
STANDARD_OUTPUT = "-"
FILE = click.Path(dir_okay=False)

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AgentDeployment:
    """Namespace and image of the agent."""

    namespace: str
    image: str


@click.command()
@click.argument("cluster", metavar="NAME")
@click.option(
    "-n", "--namespace", default=DEFAULT_NAMESPACE, show_default=True, metavar="NAMESPACE", help="Namespace of the agent."
)
@click.option("--image", metavar="REF", help=f"Image of the agent. Default: {DEFAULT_IMAGE} with the version of hubctl.")
@click.option("-o", "--output", metavar="FILE", type=FILE, help="Write the manifests to this file. Default: standard output.")
@OVERWRITE
@click.option("--apply", "at", metavar="KUBECONFIG", type=FILE, help="Apply the manifests to the cluster of this kubeconfig.")
@click.option("--apply-context", metavar="NAME", help="Context of the kubeconfig. Default: the current context.")
@click.option(
    "--server", metavar="URL", help="HTTPS address at which the cluster reaches the hub. Default: the advertised address."
)
@click.option(
    "--grpc-server",
    metavar="HOST:PORT",
    help="gRPC address at which the cluster reaches the hub. Default: the advertised address.",
)
@click.option(
    "--expires", default="", metavar="DURATION", help="Validity of the bootstrap credential. Default: set by the hub (1h)."
)
@click.option("--cluster-set", default="", metavar="SET", help="ManagedClusterSet to which the cluster is added.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label of the cluster. May be repeated.")
@click.option("--allow-loopback", is_flag=True, help="Allow addresses that are reachable only from this machine.")
@connected
def join(client: ApiClient, cluster: str, at: str | None, apply_context: str | None, **chosen: Any) -> None:
    """Print or apply the manifests with which a cluster joins.

    The command creates a bootstrap credential for this cluster name and one agent, valid for --expires. The manifests are a
    Namespace, the agent's ServiceAccount and RBAC, the Secret bootstrap-hub-kubeconfig, and the agent's Deployment, as in
    the chart charts/spoke. Use the chart to configure the agent further or to upgrade it by Helm.

    The manifests contain a private key. A file is written with mode 0600; protect the standard output yourself.

    \b
    Examples:
      hubctl join edge1 | kubectl --context edge1 apply -f -
      hubctl join edge1 --apply ~/.kube/config --apply-context edge1
      hubctl join edge1 --image registry.example.com/muster/spoke:0.1.0 --label region=eu -o edge1.yaml

    Then decide: hubctl accept edge1, hubctl certificate approve edge1, unless a rule does.
    """
    if at is not None and chosen["output"] is not None:
        raise CommandError("give --apply or --output, not both", code=2)
    # Fail for an unreachable cluster before a credential is created for it.
    there = _reached(at, apply_context) if at is not None else None
    file = None if chosen["output"] in (None, STANDARD_OUTPUT) else _file(chosen["output"], overwrite=chosen["overwrite"])
    wanted = NewCredential.of({**chosen, "cluster": cluster})
    wanted.check(wanted.endpoints)
    content, until = create_kubeconfig(client, wanted)
    manifests = manifests_of(AgentDeployment(chosen["namespace"], chosen["image"] or default_image()), content)
    if there is not None:
        there.all_of(manifests)
    elif file is None:
        click.echo(_written(manifests), nl=False)
    else:
        with file:
            file.write(_written(manifests).encode())
        click.echo(f"on the cluster: kubectl apply -f {chosen['output']}", err=True)
    click.echo(f'cluster "{cluster}" may join until {until}; then: hubctl accept {cluster}', err=True)


def _file(name: str, *, overwrite: bool) -> PrivateFile:
    """The output file. Raises CommandError when it exists with other content."""

    def is_own(documents: list[Any]) -> bool:
        secrets = [each for each in documents if isinstance(each, dict) and each.get("kind") == "Secret"]
        return not documents or [(each.get("metadata") or {}).get("name") for each in secrets] == [SECRET]

    return output_file(name, is_own, overwrite=overwrite)


def _reached(kubeconfig: str, context: str | None) -> Applying:
    """The cluster, which has answered a request. Raises CommandError."""
    client = client_of(kubeconfig, context)
    try:
        client.get("/version")
    except CommandError as error:
        cluster = f"the cluster that {kubeconfig} leads to"
        sentence = f"{cluster} does not let hubctl in or does not answer; try `kubectl --kubeconfig {kubeconfig} version`"
        raise CommandError(sentence, reason=error.reason, code=error.code) from None
    return Applying(client, force=True)


def manifests_of(place: AgentDeployment, kubeconfig: bytes) -> list[Manifest]:
    """The agent's objects in order of creation, with its namespace and its bootstrap kubeconfig."""
    from machinery.meta import bounded_yaml as boundedyaml  # noqa: PLC0415 - only for manifests

    text = MANIFESTS.read_text().replace(IMAGE, place.image).replace(NAMESPACE, place.namespace)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": place.namespace}}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET, "namespace": place.namespace},
        "type": "Opaque",
        "stringData": {KEY: kubeconfig.decode("ascii")},
    }
    return [namespace, secret, *boundedyaml.load_all(text)]


def default_image() -> str:
    """The image with hubctl's own version; `latest` for a source tree."""
    from machinery.product import version  # noqa: PLC0415 - only needed here

    own = version()
    return f"{DEFAULT_IMAGE}:{'latest' if '+' in own else own}"


def _written(manifests: list[Manifest]) -> str:
    import yaml  # noqa: PLC0415 - only for manifests

    return "".join(f"---\n{yaml.safe_dump(manifest, sort_keys=False)}" for manifest in manifests)
