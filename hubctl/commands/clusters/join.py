"""hubctl join: prints or applies the manifests with which a cluster joins.

`agent.yaml` is the agent's chart as rendered by Helm, with placeholders. `make charts` writes it; a test compares it with the
chart.
"""

from pathlib import Path
from typing import Any

import click

from hubctl.arguments.targets import Manifest
from hubctl.client.connection import client_of, connected
from hubctl.client.http import ApiClient
from hubctl.commands.clusters.create import ENDPOINTS, create_kubeconfig, endpoints_of
from hubctl.commands.clusters.credential_options import credential_spec
from hubctl.commands.objects.apply import apply_manifests
from hubctl.errors import CommandError, UsageError
from hubctl.files import OVERWRITE, output_file
from hubctl.options import text_option
from machinery.product import version

MANIFESTS = Path(__file__).with_name("agent.yaml")
NAMESPACE, IMAGE = "the-agents-namespace", "the-agents-image:tag"
"""Placeholders in the manifests."""
SECRET, KEY = "bootstrap-hub-kubeconfig", "kubeconfig"
DEFAULT_NAMESPACE = "open-cluster-management-agent"
DEFAULT_IMAGE = "muster/spoke"
STANDARD_OUTPUT = "-"
FILE = click.Path(dir_okay=False)


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
@ENDPOINTS
@text_option("--cluster-set", "SET", "ManagedClusterSet to which the cluster is added.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label of the cluster. May be repeated.")
@click.option("--allow-loopback", is_flag=True, help="Allow addresses that are reachable only from this machine.")
@connected
def join(client: ApiClient, cluster: str, at: str | None, apply_context: str | None, **chosen: Any) -> None:
    """Print or apply the manifests with which a cluster joins.

    The command creates a bootstrap credential for this cluster name and one agent, valid for --expires. The manifests are the
    namespaces of the agent and of add-ons, the agent's ServiceAccount and RBAC, the Secret bootstrap-hub-kubeconfig, and the
    agent's Deployment, as in the chart charts/spoke. Use the chart to configure the agent further or to upgrade it by Helm.

    The manifests contain a private key. A file is written with mode 0600; protect the standard output yourself.

    \b
    Examples:
      hubctl join edge1 | kubectl --context edge1 apply -f -
      hubctl join edge1 --apply ~/.kube/config --apply-context edge1
      hubctl join edge1 --image registry.example.com/muster/spoke:0.1.0 --label region=eu -o edge1.yaml

    Then: hubctl accept edge1, unless a rule decides.
    """
    if at is not None and chosen["output"] is not None:
        raise UsageError("give --apply or --output, not both")
    # If the cluster is unreachable, fail before a credential is created.
    target = _reachable_cluster(at, apply_context) if at is not None else None
    to_file = chosen["output"] not in (None, STANDARD_OUTPUT)
    file = output_file(chosen["output"], is_join, overwrite=chosen["overwrite"]) if to_file else None
    options = {**chosen, "cluster": cluster}
    endpoints = endpoints_of(options)
    content, until = create_kubeconfig(client, credential_spec(options), endpoints, allow_loopback=chosen["allow_loopback"])
    manifests = manifests_of(chosen["namespace"], chosen["image"] or default_image(), content)
    if target is not None:
        apply_manifests(target, manifests, force=True)
    elif file is None:
        click.echo(_written(manifests), nl=False)
    else:
        with file as opened:
            opened.write(_written(manifests).encode())
        click.echo(f"on the cluster: kubectl apply -f {chosen['output']}", err=True)
    click.echo(f'cluster "{cluster}" may join until {until}; then: hubctl accept {cluster}', err=True)


def is_join(documents: list[Any]) -> bool:
    """Whether the documents of a file are manifests of `hubctl join`, or there are none."""
    secrets = [each for each in documents if isinstance(each, dict) and each.get("kind") == "Secret"]
    return not documents or [(each.get("metadata") or {}).get("name") for each in secrets] == [SECRET]


def _reachable_cluster(kubeconfig: str, context: str | None) -> ApiClient:
    """Return a client of the cluster after a successful request. Raises CommandError."""
    client = client_of(kubeconfig, context)
    try:
        client.get("/version")
    except CommandError as error:
        cluster = f"the cluster that {kubeconfig} leads to"
        sentence = f"{cluster} rejects hubctl or does not answer; try `kubectl --kubeconfig {kubeconfig} version`"
        raise CommandError(sentence, reason=error.reason, code=error.code) from None
    return client


def manifests_of(namespace: str, image: str, kubeconfig: bytes) -> list[Manifest]:
    """Return the agent's objects in order of creation, with namespace, image and bootstrap kubeconfig."""
    from machinery.meta import bounded_yaml  # noqa: PLC0415 - only for manifests

    text = MANIFESTS.read_text().replace(IMAGE, image).replace(NAMESPACE, namespace)
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET, "namespace": namespace},
        "type": "Opaque",
        "stringData": {KEY: kubeconfig.decode()},
    }
    return [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}, secret, *bounded_yaml.load_all(text)]


def default_image() -> str:
    """Return the image with the version of hubctl; in a source tree, with the tag `latest`."""
    return f"{DEFAULT_IMAGE}:{'latest' if '+' in version() else version()}"


def _written(manifests: list[Manifest]) -> str:
    from machinery.meta import bounded_yaml  # noqa: PLC0415 - only for manifests

    return "".join(bounded_yaml.write(manifest, explicit_start=True) for manifest in manifests)
