"""hubctl apply: server-side apply of manifests."""

from collections.abc import Sequence
from typing import Any

import click

from hubctl.arguments.targets import Manifest, One, each, located, read_manifests
from hubctl.client.connection import connected
from hubctl.client.http import ApiClient
from hubctl.client.resources import Catalogue
from hubctl.errors import CommandError
from hubctl.options import DRY_RUN, dry_run_query

APPLY_PATCH = "application/apply-patch+yaml"
MANAGER = "hubctl"


@click.command()
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    required=True,
    metavar="FILE",
    help="File, directory, or - for standard input.",
)
@click.option("-R", "--recursive", is_flag=True, help="Include subdirectories.")
@click.option("-n", "--namespace", default="", metavar="CLUSTER", help="Namespace of objects that specify none.")
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
    manifests = read_manifests(files, recursive=recursive)
    if not manifests:
        raise CommandError("there is no object in it", code=2)
    theirs = Applying(client, chosen["field_manager"], force=chosen["force_conflicts"], dry_run=chosen["dry_run"])
    theirs.all_of(manifests, namespace)


class Applying:
    """Server-side apply to one API server with one field manager."""

    def __init__(self, client: ApiClient, manager: str = MANAGER, *, force: bool, dry_run: Any = None) -> None:
        self._client = client
        self._catalogue = Catalogue(client)
        self._dry_run = dry_run
        self._query = {
            "fieldManager": manager,
            "force": "true" if force else "false",
            "fieldValidation": "Strict",
            **dry_run_query(dry_run),
        }

    def all_of(self, manifests: Sequence[Manifest], namespace: str = "") -> None:
        """Apply all in order, also after a failure; print the result of each. Raises CommandError.

        `namespace`: for objects without one.
        """
        each(manifests, lambda manifest: self._apply(manifest, namespace))

    def _apply(self, manifest: Manifest, namespace: str) -> None:
        one = located(self._catalogue, manifest, namespace)
        before = self._revision(one)
        metadata = {name: value for name, value in manifest["metadata"].items() if name != "managedFields"}
        wanted = {**manifest, "metadata": metadata}
        try:
            after = self._client.request("PATCH", one.path, wanted, content_type=APPLY_PATCH, query=self._query)
        except CommandError as error:
            more = "; --force-conflicts takes them over" if error.reason == "Conflict" else ""
            sentence = f'{one.resource.noun} "{one.name}": {error.sentence}{more}'
            raise CommandError(sentence, reason=error.reason, code=error.code) from None
        word = "created" if before is None else "unchanged" if after["metadata"]["resourceVersion"] == before else "configured"
        click.echo(f'{one.resource.noun} "{one.name}" {word}{" (dry run)" if self._dry_run else ""}')

    def _revision(self, one: One) -> str | None:
        """The resourceVersion; None when the object does not exist."""
        try:
            return str(self._client.get(one.path)["metadata"]["resourceVersion"])
        except CommandError as error:
            if error.reason != "NotFound":
                raise
            return None
