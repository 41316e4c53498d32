"""hubctl addon enable and disable: add-ons on several clusters, as in clusteradm."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from hubctl.arguments.batch import confirm, run_each
from hubctl.arguments.selection import SELECTION, select_objects
from hubctl.client.connection import connected
from hubctl.client.http import ApiClient
from hubctl.client.resources import ADDON_DEFINITIONS, ADDONS, CLUSTERS
from hubctl.errors import CommandError
from hubctl.options import CHANGE, read_key_values, text_option, with_options

V1ALPHA1 = ADDONS.group_version.replace("v1beta1", "v1alpha1")
"""The API version whose spec contains the install namespace."""
DEFAULT_NAMESPACE = "open-cluster-management-agent-addon"


_CHOICE = with_options(text_option("--clusters", "NAME,NAME", "Names of the clusters."), *SELECTION, *CHANGE)


@dataclass(frozen=True, slots=True)
class ClusterAddon:
    name: str
    cluster: str

    def __str__(self) -> str:
        return f'add-on "{self.name}" on cluster "{self.cluster}"'

    @property
    def path(self) -> str:
        return ADDONS.of(self.name, self.cluster).replace(ADDONS.group_version, V1ALPHA1)


def _run(
    client: ApiClient, names: Sequence[str], chosen: Mapping[str, Any], order: str, act: Callable[[ClusterAddon], str]
) -> None:
    """Call `act` for each add-on on each chosen cluster. Raises CommandError."""
    clusters = list(dict.fromkeys(name.strip() for name in chosen["clusters"].split(",") if name.strip()))
    selection = select_objects(client, clusters, chosen, CLUSTERS)
    confirm(selection, chosen, f"{order} {', '.join(names)} on")
    run_each([ClusterAddon(name, one.name) for name in names for one in selection.objects], act, counts=not selection.is_named)


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
@text_option("--install-namespace", "NAMESPACE", f"Namespace of the add-on in the clusters.  [default: {DEFAULT_NAMESPACE}]")
@click.option(
    "--annotate", "annotations", multiple=True, metavar="KEY=VALUE", help="Annotation of the add-on. May be repeated."
)
@connected
def enable(
    client: ApiClient, names: tuple[str, ...], install_namespace: str, annotations: tuple[str, ...], **chosen: Any
) -> None:
    """Enable add-ons on clusters: create a ManagedClusterAddOn in the namespace of each cluster.

    On an existing ManagedClusterAddOn the command sets only --install-namespace and --annotate. The hub installs nothing,
    because the add-on's manager does this.

    \b
    Examples:
      hubctl addon enable cluster-proxy --clusters edge1,edge2
      hubctl addon enable managed-serviceaccount -l region=eu --install-namespace msa
      hubctl addon enable search --where 'memory >= 16Gi && !("search" in addons)' --dry-run=server
      hubctl get clusters -o name -l wave=1 | hubctl addon enable search -f -
    """
    notes = read_key_values("--annotate", "annotation", annotations)
    wanted = {
        **({"metadata": {"annotations": notes}} if notes else {}),
        **({"spec": {"installNamespace": install_namespace}} if install_namespace else {}),
    }
    for name in names:  # only a warning, because an add-on may need no definition
        if client.find(ADDON_DEFINITIONS.of(name)) is None:
            click.echo(f'warning: there is no ClusterManagementAddOn "{name}": check that a manager installs it', err=True)
    _run(client, names, chosen, "enable", lambda one: _enable(client, one, wanted))


@addon.command("disable")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_CHOICE
@connected
def disable(client: ApiClient, names: tuple[str, ...], **chosen: Any) -> None:
    """Disable add-ons on clusters: delete their ManagedClusterAddOns, which are removed after cleanup by their managers.

    \b
    Examples:
      hubctl addon disable cluster-proxy --clusters edge1,edge2
      hubctl addon disable cluster-proxy --all --yes
      hubctl addon disable search --where 'addons["search"] == "unhealthy"'
    """
    _run(client, names, chosen, "disable", lambda one: _disable(client, one))


def _enable(client: ApiClient, one: ClusterAddon, wanted: dict[str, Any]) -> str:
    new = {"apiVersion": V1ALPHA1, "kind": ADDONS.kind, **wanted, "spec": wanted.get("spec") or {}}
    new["metadata"] = {"name": one.name, "namespace": one.cluster, **(wanted.get("metadata") or {})}
    try:
        client.request("POST", one.path.rpartition("/")[0], new)
    except CommandError as error:
        if error.reason != "AlreadyExists":
            raise
    else:
        return f'add-on "{one.name}" enabled on cluster "{one.cluster}"{client.note}'
    if wanted:
        client.patch(one.path, wanted)
    return f'add-on "{one.name}" is enabled on cluster "{one.cluster}" already{": configured" if wanted else ""}{client.note}'


def _disable(client: ApiClient, one: ClusterAddon) -> str:
    try:
        answer = client.request("DELETE", one.path)
    except CommandError as error:
        if error.reason != "NotFound":
            raise
        client.get(CLUSTERS.of(one.cluster))  # raises if the cluster does not exist either
        return f'add-on "{one.name}" is not enabled on cluster "{one.cluster}"'
    held = (answer.get("metadata") or {}).get("finalizers")
    later = f"; the hub waits for its finalizers: {', '.join(map(str, held))}" if held else ""
    return f'add-on "{one.name}" disabled on cluster "{one.cluster}"{later}{client.note}'
