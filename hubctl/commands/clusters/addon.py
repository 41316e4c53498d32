"""hubctl addon enable and disable: add-ons on several clusters at once, as in clusteradm."""

from typing import Any

import click

from hubctl.arguments.targets import each
from hubctl.client.connection import connected
from hubctl.client.http import ApiClient, items
from hubctl.client.resources import ADDON_DEFINITIONS, ADDONS, CLUSTERS
from hubctl.errors import CommandError
from hubctl.options import read_key_values, with_options

V1ALPHA1 = ADDONS.group_version.replace("v1beta1", "v1alpha1")
"""The API version whose spec has the install namespace."""
DEFAULT_NAMESPACE = "open-cluster-management-agent-addon"


_CHOICE = with_options(
    click.option("--clusters", default="", metavar="NAME,NAME", help="Names of the clusters."),
    click.option("-l", "--selector", default="", metavar="SELECTOR", help="Clusters with these labels."),
    click.option("--all", "everything", is_flag=True, help="All clusters."),
)


def _chosen_clusters(client: ApiClient, clusters: str, selector: str, *, everything: bool) -> list[str]:
    """The names. Raises CommandError, also for a cluster that does not exist, before anything is changed."""
    if sum(map(bool, (clusters, selector, everything))) != 1:
        raise CommandError("say which clusters: --clusters NAME,NAME, or --selector, or --all", code=2)
    if clusters:
        named = list(dict.fromkeys(name.strip() for name in clusters.split(",") if name.strip()))
        for name in named:
            client.get(CLUSTERS.of(name))
        return named
    found = [str(item["metadata"]["name"]) for item in items(client, CLUSTERS.path, {"labelSelector": selector})]
    if not found:
        raise CommandError("there is no cluster like that", reason="NotFound")
    return found


@click.group()
def addon() -> None:
    """Enable or disable add-ons on clusters.

    \b
    Examples:
      hubctl addon enable cluster-proxy --clusters edge1,edge2
      hubctl addon disable cluster-proxy --all
      hubctl get addons
    """


@addon.command("enable")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_CHOICE
@click.option(
    "--install-namespace",
    default="",
    metavar="NAMESPACE",
    help=f"Namespace of the add-on in the clusters.  [default: {DEFAULT_NAMESPACE}]",
)
@click.option(
    "--annotate", "annotations", multiple=True, metavar="KEY=VALUE", help="Annotation of the add-on. May be repeated."
)
@connected
def enable(
    client: ApiClient, names: tuple[str, ...], install_namespace: str, annotations: tuple[str, ...], **chosen: Any
) -> None:
    """Enable add-ons on clusters: create a ManagedClusterAddOn in the namespace of each cluster.

    On an existing ManagedClusterAddOn only --install-namespace and --annotate are set. The hub installs nothing; that is
    the task of the add-on's manager.

    \b
    Examples:
      hubctl addon enable cluster-proxy --clusters edge1,edge2
      hubctl addon enable managed-serviceaccount -l region=eu --install-namespace msa
    """
    notes = read_key_values("--annotate", "annotation", annotations)
    wanted = {
        **({"metadata": {"annotations": notes}} if notes else {}),
        **({"spec": {"installNamespace": install_namespace}} if install_namespace else {}),
    }
    clusters = _chosen_clusters(client, **chosen)
    for name in names:  # an add-on without definition may be a mistake, or need no definition
        if client.find(ADDON_DEFINITIONS.of(name)) is None:
            click.echo(f'warning: there is no ClusterManagementAddOn "{name}": does anybody install it?', err=True)
    each([(cluster, name) for name in names for cluster in clusters], lambda pair: _enable(client, *pair, wanted))


@addon.command("disable")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_CHOICE
@connected
def disable(client: ApiClient, names: tuple[str, ...], **chosen: Any) -> None:
    """Disable add-ons on clusters: delete their ManagedClusterAddOns, which are removed after cleanup by their managers.

    \b
    Examples:
      hubctl addon disable cluster-proxy --clusters edge1,edge2
      hubctl addon disable cluster-proxy --all
    """
    clusters = _chosen_clusters(client, **chosen)
    each([(cluster, name) for name in names for cluster in clusters], lambda pair: _disable(client, *pair))


def _path(cluster: str, name: str = "") -> str:
    path = ADDONS.of(name, cluster) if name else ADDONS.within(cluster)
    return path.replace(ADDONS.group_version, V1ALPHA1)


def _enable(client: ApiClient, cluster: str, name: str, wanted: dict[str, Any]) -> None:
    new = {"apiVersion": V1ALPHA1, "kind": ADDONS.kind, **wanted, "spec": wanted.get("spec") or {}}
    new["metadata"] = {"name": name, "namespace": cluster, **(wanted.get("metadata") or {})}
    try:
        client.request("POST", _path(cluster), new)
    except CommandError as error:
        if error.reason != "AlreadyExists":
            raise
    else:
        click.echo(f'add-on "{name}" enabled on cluster "{cluster}"')
        return
    if wanted:
        client.patch(_path(cluster, name), wanted)
    click.echo(f'add-on "{name}" is enabled on cluster "{cluster}" already{": configured" if wanted else ""}')


def _disable(client: ApiClient, cluster: str, name: str) -> None:
    try:
        answer = client.request("DELETE", _path(cluster, name))
    except CommandError as error:
        if error.reason != "NotFound":
            raise
        click.echo(f'add-on "{name}" is not enabled on cluster "{cluster}"')
        return
    held = (answer.get("metadata") or {}).get("finalizers")
    later = f"; it goes when {', '.join(map(str, held))} let go" if held else ""
    click.echo(f'add-on "{name}" disabled on cluster "{cluster}"{later}')
