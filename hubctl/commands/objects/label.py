"""hubctl label and hubctl annotate: change labels and annotations of any kind of object, as in kubectl."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from hubctl.arguments.completion import target_words
from hubctl.arguments.targets import One, TargetScope, each, objects
from hubctl.client.connection import connected
from hubctl.client.http import MERGE_PATCH, ApiClient
from hubctl.errors import CommandError
from hubctl.options import DRY_RUN, EVERYTHING, FIELDS, NAMESPACE, SELECTOR, dry_run_query, with_options

ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class LabelChanges:
    """Pairs to set and keys to remove, of labels or annotations."""

    part: str
    values: Mapping[str, str]
    removed: tuple[str, ...]

    @property
    def patch(self) -> dict[str, str | None]:
        return {**self.values, **dict.fromkeys(self.removed)}

    def check(self, before: Mapping[str, str]) -> None:
        """Raises CommandError when a key already has another value."""
        for key, value in self.values.items():
            if before.get(key, value) != value:
                raise CommandError(f'"{key}" is "{before[key]}" already: --overwrite changes it')

    def changes(self, before: Mapping[str, str]) -> bool:
        return any(before.get(key) != value for key, value in self.values.items()) or any(key in before for key in self.removed)


_options = with_options(
    click.argument("words", nargs=-1, required=True, metavar="KIND NAME... KEY=VALUE... KEY-...", shell_complete=target_words),
    click.option("--overwrite", is_flag=True, help="Also change keys that have another value."),
    click.option("--list", "lists", is_flag=True, help="Show what there is, changed or not."),
    *(SELECTOR, FIELDS, EVERYTHING, NAMESPACE, DRY_RUN),
    connected,
)


@click.command()
@_options
def label(client: ApiClient, words: tuple[str, ...], **chosen: Any) -> None:
    """Set labels of clusters or other objects, or remove them: KEY- removes one.

    \b
    Examples:
      hubctl label cluster edge1 region=eu tier-
      hubctl label clusters edge1 edge2 region=us --overwrite
      hubctl label clusters -l region=eu env=prod
      hubctl label cluster edge1 --list
    """
    _change(client, words, "labels", chosen)


@click.command()
@_options
def annotate(client: ApiClient, words: tuple[str, ...], **chosen: Any) -> None:
    """Set annotations of clusters or other objects, or remove them: KEY- removes one.

    \b
    Examples:
      hubctl annotate cluster edge1 owner='team north' ticket-
      hubctl annotate clusters --all checked=2026-11 --overwrite
      hubctl annotate cluster edge1 --list
    """
    _change(client, words, "annotations", chosen)


def split(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split the words for objects from those for changes. Raises CommandError."""
    first = next((index for index, word in enumerate(words) if _is_pair(word)), len(words))
    later = [word for word in words[first:] if not _is_pair(word)]
    if later:
        raise CommandError(f'"{later[0]}" is neither KEY=VALUE nor KEY-, as the words before it are', code=2)
    return tuple(words[:first]), tuple(words[first:])


def read_changes(part: str, pairs: Sequence[str]) -> LabelChanges:
    """Parse the changes. Raises CommandError for a key that is both set and removed, or set twice."""
    values: dict[str, str] = {}
    removed = []
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            removed.append(pair.removesuffix("-"))
        elif values.setdefault(key, value) != value:
            raise CommandError(f'"{key}" cannot be set to two values', code=2)
    both = sorted(set(values) & set(removed))
    if both:
        raise CommandError(f'"{both[0]}" cannot be both set and removed', code=2)
    return LabelChanges(part, values, tuple(removed))


def _is_pair(word: str) -> bool:
    return "=" in word or (word.endswith("-") and len(word) > 1)


def _change(client: ApiClient, words: tuple[str, ...], part: str, chosen: dict[str, Any]) -> None:
    targets, pairs = split(words)
    changes = read_changes(part, pairs)
    if not pairs and not chosen["lists"]:
        raise CommandError(f"say what to change: KEY=VALUE or KEY-, or --list to see the {part}", code=2)
    place = TargetScope(chosen["namespace"], chosen["selector"], chosen["field_selector"], everything=chosen["everything"])
    found = {one.path: one for one in objects(client, targets, place)}
    each(tuple(found), lambda path: _apply(client, found[path], changes, chosen))


def _apply(client: ApiClient, one: One, changes: LabelChanges, chosen: dict[str, Any]) -> None:
    for attempt in range(ATTEMPTS):
        document = client.get(one.path)
        before = document["metadata"].get(changes.part) or {}
        if not chosen["overwrite"]:
            changes.check(before)
        try:
            after = _patched(client, one, changes, document, dry_run=chosen["dry_run"]) if changes.changes(before) else before
        except CommandError as error:
            if error.reason != "Conflict" or attempt == ATTEMPTS - 1:
                raise
            continue
        _tell(one, changes, chosen, after, changed=changes.changes(before))
        return


def _patched(
    client: ApiClient, one: One, changes: LabelChanges, document: Mapping[str, Any], *, dry_run: bool
) -> Mapping[str, str]:
    """Apply the patch with the read resourceVersion, so that a concurrent change is not overwritten; return the new pairs."""
    patch = {"metadata": {"resourceVersion": document["metadata"]["resourceVersion"], changes.part: changes.patch}}
    after = client.request("PATCH", one.path, patch, content_type=MERGE_PATCH, query=dry_run_query(dry_run))
    return after["metadata"].get(changes.part) or {}


def _tell(one: One, changes: LabelChanges, chosen: dict[str, Any], after: Mapping[str, str], *, changed: bool) -> None:
    if changes.patch:
        done = {"labels": "labeled", "annotations": "annotated"}[changes.part]
        word = f"un{done}" if changes.removed and not changes.values else done
        suffix = " (dry run)" if chosen["dry_run"] else ""
        click.echo(f'{one.resource.noun} "{one.name}" {"" if changed else "not "}{word}{suffix}')
    if chosen["lists"]:
        click.echo(f'{changes.part} of {one.resource.noun} "{one.name}":')
        for key, value in sorted(after.items()):
            click.echo(f"  {key}={value}")
