"""hubctl apply: server-side apply of manifests."""

from collections.abc import Sequence
from typing import Any

import click

from hubctl.arguments.batch import run_each
from hubctl.arguments.targets import Manifest, located, read_manifests, read_sources
from hubctl.client.connection import connected
from hubctl.client.http import ApiClient
from hubctl.client.resources import Catalogue
from hubctl.errors import CommandError, UsageError
from hubctl.options import DRY_RUN, text_option

APPLY_PATCH = "application/apply-patch+yaml"
MANAGER = "hubctl"


@click.command()
@click.option(
    "-f", "--filename", "files", multiple=True, required=True, metavar="FILE", help="File, directory, or - for standard input."
)
@click.option("-R", "--recursive", is_flag=True, help="Include subdirectories.")
@text_option("-n", "--namespace", "CLUSTER", "Namespace of objects that specify none.")
@click.option("--force-conflicts", is_flag=True, help="Take ownership of fields that other field managers own.")
@click.option(
    "--field-manager", default=MANAGER, show_default=True, metavar="NAME", help="Field manager that owns the applied fields."
)
@DRY_RUN
@click.option(
    "--server-side", is_flag=True, hidden=True, help="Accepted for compatibility with kubectl; apply is always server-side."
)
@connected
def apply(client: ApiClient, files: tuple[str, ...], *, recursive: bool, namespace: str, **chosen: Any) -> None:
    """Create or change objects from manifests by server-side apply.

    Fields that you applied before and omit now are removed. Fields that other field managers own are conflicts, unless you
    set --force-conflicts.

    \b
    Examples:
      hubctl apply -f rules.yaml
      hubctl apply -f fleet/ -R --dry-run
      hubctl get rule edges -o yaml | hubctl apply -f - --force-conflicts
    """
    manifests = [each for source in read_sources(files, recursive=recursive) for each in read_manifests(*source)]
    if not manifests:
        raise UsageError("there is no object in it")
    apply_manifests(client, manifests, namespace, manager=chosen["field_manager"], force=chosen["force_conflicts"])


def apply_manifests(
    client: ApiClient, manifests: Sequence[Manifest], namespace: str = "", *, manager: str = MANAGER, force: bool
) -> None:
    """Apply all manifests in order, even after a failure. Print each result. Raises CommandError.

    `namespace`: for objects that specify none. `manager`: the field manager. `force`: take over fields of other managers.
    """
    catalogue = Catalogue(client)
    query = {"fieldManager": manager, "force": "true" if force else "false", "fieldValidation": "Strict"}

    def act(manifest: Manifest) -> str:
        one = located(catalogue, manifest, namespace)
        before = client.find(one.path)
        metadata = {name: value for name, value in manifest["metadata"].items() if name != "managedFields"}
        wanted = {**manifest, "metadata": metadata}
        try:
            after = client.request("PATCH", one.path, wanted, content_type=APPLY_PATCH, query=query)
        except CommandError as error:
            if error.reason == "Conflict":
                error.sentence += "; --force-conflicts takes them over"
            raise
        if before is None:
            word = "created"
        else:
            revisions = {document["metadata"]["resourceVersion"] for document in (before, after)}
            word = "unchanged" if len(revisions) == 1 else "configured"
        return f"{one} {word}{client.note}"

    # One after the other, because an object may need an earlier one, for example its namespace.
    run_each(manifests, act, named=lambda each: f'{each["kind"]} "{each["metadata"]["name"]}"', workers=1)
