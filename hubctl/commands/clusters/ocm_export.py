"""hubctl export: writes the inventory as manifests for an OCM hub."""

from typing import Any

import click

from hubctl.arguments.completion import names_of
from hubctl.client.connection import connected
from hubctl.client.http import ApiClient
from hubctl.commands.clusters.ocm_inventory import read_inventory, with_namespaces
from hubctl.errors import UsageError
from hubctl.files import OVERWRITE, as_yaml, output_file
from hubctl.options import SELECTOR, with_options

EXPORTED = {"ManagedClusterSet", "ManagedCluster", "Namespace", "ManagedClusterSetBinding", "ManagedClusterAddOn"}


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME...]", shell_complete=names_of("clusters"))
@click.option("--to-ocm", is_flag=True, help="Write what an OCM hub takes. Required.")
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False), help="Default: standard output.")
@OVERWRITE
@with_options(SELECTOR)
@connected
def export(client: ApiClient, names: tuple[str, ...], output: str | None, *, to_ocm: bool, **chosen: Any) -> None:
    """Write the inventory as manifests for an OCM hub: cluster sets, clusters, namespaces, bindings, add-ons.

    The manifests contain no status, no certificates, and no labels or annotations of this project. NAME or --selector select
    clusters with their add-ons. OCM's agents register with a bootstrap kubeconfig of the OCM hub.

    \b
    Examples:
      hubctl export --to-ocm -o inventory.yaml
      hubctl export --to-ocm -l region=eu | kubectl --kubeconfig ocm.kubeconfig apply -f -
    """
    if not to_ocm:
        raise UsageError("give --to-ocm, the only form there is")
    found = with_namespaces(read_inventory(client, names, chosen["selector"]))
    texts = [as_yaml(each.manifest, apart=True) for each in found]
    if output is None:
        click.echo("".join(texts), nl=False)
        return
    with output_file(output, lambda known: {*map(_kind, known)} <= EXPORTED, overwrite=chosen["overwrite"]) as file:
        file.writelines(text.encode() for text in texts)
    click.echo(f"{output} is written: kubectl --kubeconfig OCM_KUBECONFIG apply -f {output}", err=True)


def _kind(document: Any) -> str:
    return str(document.get("kind")) if isinstance(document, dict) else ""
