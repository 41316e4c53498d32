"""hubctl label, annotate and taint: change labels and annotations of any object, and taints of clusters, as in kubectl."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from hubctl.arguments.batch import patch_object, run_batch, run_each
from hubctl.arguments.completion import names_of, target_words
from hubctl.arguments.selection import SELECTION, select_objects
from hubctl.arguments.targets import ObjectReference
from hubctl.client.connection import connected
from hubctl.client.http import ApiClient
from hubctl.client.resources import CLUSTERS
from hubctl.errors import CommandError, UsageError, closest
from hubctl.options import CHANGE, NAMESPACE, with_options
from hubctl.output.tables import print_lines

DONE = {"labels": "labeled", "annotations": "annotated"}
ORDERS = {"labels": "label", "annotations": "annotate"}
_OPTIONS = with_options(
    click.argument("words", nargs=-1, metavar="KIND NAME... KEY=VALUE... KEY-...", shell_complete=target_words),
    click.option("--overwrite", is_flag=True, help="Also change keys that have another value."),
    click.option("--list", "lists", is_flag=True, help="List the current values."),
    *(*SELECTION, NAMESPACE, *CHANGE),
    connected,
)


@click.command()
@_OPTIONS
def label(client: ApiClient, words: tuple[str, ...], **chosen: Any) -> None:
    """Set labels of clusters or other objects. KEY- removes a label.

    \b
    Examples:
      hubctl label cluster edge1 region=eu tier-
      hubctl label clusters edge1 edge2 region=us --overwrite
      hubctl label clusters -l region=eu env=prod
      hubctl label clusters --where 'version < 1.30 && !accepted' upgrade=first --yes
      hubctl get clusters -o name | hubctl label -f - audited=2026-11 --overwrite --dry-run=server
      hubctl label cluster edge1 --list
    """
    _change(client, words, "labels", chosen)


@click.command()
@_OPTIONS
def annotate(client: ApiClient, words: tuple[str, ...], **chosen: Any) -> None:
    """Set annotations of clusters or other objects. KEY- removes an annotation.

    \b
    Examples:
      hubctl annotate cluster edge1 owner='team north' ticket-
      hubctl annotate clusters --all checked=2026-11 --overwrite --yes
      hubctl annotate clusters --where 'age > 365d' ticket=4711
      hubctl annotate -f edges.txt owner='team north'       (lines such as cluster/edge1)
      hubctl annotate cluster edge1 --list
    """
    _change(client, words, "annotations", chosen)


def split(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split `words` into the words for objects, and the changes KEY=VALUE and KEY-. Raises CommandError."""
    first = next((index for index, word in enumerate(words) if _is_pair(word)), len(words))
    later = [word for word in words[first:] if not _is_pair(word)]
    if later:
        raise UsageError(f'"{later[0]}" is neither KEY=VALUE nor KEY-, unlike the words before it')
    return tuple(words[:first]), tuple(words[first:])


def read_changes(pairs: Sequence[str]) -> dict[str, str | None]:
    """Return the value to set for each key; None: remove the key. Raises CommandError for a key with two different changes."""
    values: dict[str, str] = {}
    removed = []
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            removed.append(pair.removesuffix("-"))
        elif values.setdefault(key, value) != value:
            raise UsageError(f'"{key}" cannot be set to two values')
    both = sorted(set(values) & set(removed))
    if both:
        raise UsageError(f'"{both[0]}" cannot be both set and removed')
    return {**values, **dict.fromkeys(removed)}


def _is_pair(word: str) -> bool:
    return "=" in word or (word.endswith("-") and len(word) > 1)


def _change(client: ApiClient, words: tuple[str, ...], part: str, chosen: dict[str, Any]) -> None:
    targets, pairs = split(words)
    changes = read_changes(pairs)
    if not pairs and not chosen["lists"]:
        raise UsageError(f"specify the change: KEY=VALUE or KEY-, or --list to show the {part}")
    word = DONE[part] if any(value is not None for value in changes.values()) else f"un{DONE[part]}"

    def change(document: Mapping[str, Any]) -> dict[str, Any] | None:
        before = document["metadata"].get(part) or {}
        for key, value in changes.items():
            if value is not None and before.get(key, value) != value and not chosen["overwrite"]:
                raise CommandError(f'"{key}" is "{before[key]}" already: --overwrite changes it')
        return None if all(before.get(key) == value for key, value in changes.items()) else {"metadata": {part: changes}}

    def act(one: ObjectReference) -> list[str]:
        changed, after = patch_object(client, one, change)
        lines = [f"{one} {'' if changed else 'not '}{word}{client.note}"] if changes else []
        if chosen["lists"]:
            values = sorted((after["metadata"].get(part) or {}).items())
            lines += [f"{part} of {one}:", *(f"  {key}={value}" for key, value in values)]
        return lines

    selection = select_objects(client, targets, chosen)
    if changes:
        run_batch(selection, act, chosen, ORDERS[part], print_lines)
    else:
        run_each(selection.objects, act, print_lines)


EFFECTS = ("NoSelect", "PreferNoSelect", "NoSelectIfNew")
Taints = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint to set or remove. If `effect` is empty, `is_like` is true for all taints with this key."""

    key: str
    effect: str = ""
    value: str = ""

    def is_like(self, other: Mapping[str, Any]) -> bool:
        return bool(other.get("key") == self.key and self.effect in ("", other.get("effect")))

    @property
    def document(self) -> dict[str, str]:
        return {"key": self.key, **({"value": self.value} if self.value else {}), "effect": self.effect}


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="clusters NAME... TAINT...", shell_complete=names_of("clusters"))
@click.option("--overwrite", is_flag=True, help="Also change a taint that has another value.")
@with_options(*SELECTION, *CHANGE)
@connected
def taint(client: ApiClient, words: tuple[str, ...], **chosen: Any) -> None:
    """Add taints to clusters, or remove them. Placements do not select clusters whose taints they do not tolerate.

    A TAINT is KEY=VALUE:EFFECT or KEY:EFFECT. A trailing - removes the taint: KEY:EFFECT-, or KEY- for all taints of this key.
    Effects: NoSelect, PreferNoSelect, NoSelectIfNew. The hub restores its own taints.

    \b
    Examples:
      hubctl taint clusters edge1 maintenance=tonight:NoSelect
      hubctl taint clusters edge1 edge2 maintenance-
      hubctl taint clusters -l region=eu gpu=none:PreferNoSelect --overwrite
      hubctl taint clusters --where 'version < 1.30' old:NoSelectIfNew --yes
    """
    first = next((index for index, word in enumerate(words) if ":" in word or _is_pair(word)), len(words))
    names, specs = words[:first], words[first:]
    if not specs:
        raise UsageError("specify a taint: KEY=VALUE:EFFECT or KEY:EFFECT, or with a trailing - to remove it")
    added, removed = read_taints(specs)
    named = names[1:] if names and names[0].lower() in CLUSTERS.words else names
    word = "tainted" if added else "untainted"

    def change(document: Mapping[str, Any]) -> dict[str, Any] | None:
        before = (document.get("spec") or {}).get("taints") or []
        after = tainted(before, added, removed, overwrite=chosen["overwrite"])
        return None if after == before else {"spec": {"taints": after}}

    def act(one: ObjectReference) -> str:
        changed, _ = patch_object(client, one, change)
        return f"{one} {word}{client.note}" if changed else f"{one} is already {word}"

    run_batch(select_objects(client, named, chosen, CLUSTERS, whole=True), act, chosen, word.removesuffix("ed"))


def read_taints(specs: Sequence[str]) -> tuple[list[Taint], list[Taint]]:
    """Return the taints to set, and the taints to remove. Raises CommandError."""
    added: list[Taint] = []
    removed: list[Taint] = []
    for spec in specs:
        is_removal = spec.endswith("-")
        pair, colon, effect = spec.removesuffix("-").partition(":")
        key, _, value = pair.partition("=")
        if not key or "=" in value or ":" in effect or (value and not colon):
            raise UsageError(f'"{spec}" is not a taint: write KEY=VALUE:EFFECT, KEY:EFFECT, KEY:EFFECT- or KEY-')
        if colon and effect not in EFFECTS:
            meant = closest(effect, EFFECTS) or f": there are {', '.join(EFFECTS)}"
            raise UsageError(f'there is no effect "{effect}"{meant}')
        if not is_removal and not effect:
            raise UsageError(f'the taint "{spec}" lacks its effect: {", ".join(EFFECTS)}')
        (removed if is_removal else added).append(Taint(key, effect, value))
    pairs = [(each.key, each.effect) for each in added]
    if len(pairs) != len(set(pairs)):
        raise UsageError("a taint with the same key and effect is given twice")
    if any(one.is_like(other.document) for one in removed for other in added):
        raise UsageError("a taint cannot be both set and removed")
    return added, removed


def tainted(
    before: Iterable[Mapping[str, Any]], added: Sequence[Taint], removed: Sequence[Taint], *, overwrite: bool
) -> Taints:
    """Return a cluster's taints after the changes.

    Raises CommandError if a taint to remove is missing, or if a taint has another value and `overwrite` is False.
    """
    old = [dict(taint) for taint in before]
    for gone in removed:
        if not any(gone.is_like(taint) for taint in old):
            raise CommandError(f'it has no taint "{gone.key}{":" if gone.effect else ""}{gone.effect}"', reason="NotFound")
    for new in added:
        other = next((str(taint.get("value") or "") for taint in old if new.is_like(taint)), new.value)
        if other != new.value and not overwrite:
            raise CommandError(f'taint "{new.key}:{new.effect}" is "{other}" already: --overwrite changes it')
    fresh = [new for new in added if not any(new.is_like(taint) and (taint.get("value") or "") == new.value for taint in old)]
    kept = [taint for taint in old if not any(gone.is_like(taint) for gone in (*removed, *fresh))]
    return [*kept, *(new.document for new in fresh)]
