"""Server-side apply: merge a configuration, remove fields that its applier no longer applies, find conflicts.

The rules are those of structured-merge-diff's `merge/update.go`. An apply of an empty map makes the applier the owner of the
map itself. If a later apply removes all entries of the map, the map becomes null and Kubernetes drops it, but the applier still
owns the map.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from machinery.errors import Cause, ConflictError, ErrorSubject
from machinery.meta.managedfields import fieldset
from machinery.meta.managedfields.comparing import ABSENT, by_element, fields_of, with_named, without, without_emptied
from machinery.meta.managedfields.fieldset import Fields, common, minus, paths, union
from machinery.meta.managedfields.ownership import (
    NOBODYS,
    Document,
    FieldHolding,
    FieldWriter,
    Holdings,
    InVersion,
    Operation,
    Versions,
    comparisons,
    current,
    released,
)
from machinery.meta.managedfields.structure import LEAF, FieldForm, Structure


def merge(structure: Structure, live: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the configuration into the live document. Entries of list maps and sets get the configuration's order."""
    merged: dict[str, Any] = _merged(structure, live, config)
    return merged


def _merged(structure: Structure, live: Any, config: Any) -> Any:
    if config is ABSENT:
        return live
    if live is ABSENT or live is None:
        return config
    here = structure.divides(live)
    form = here if config is None else structure.divides(config)
    if form is FieldForm.LEAF or form is not here or not (live or config):
        return config
    if config is None:
        return live
    if form is not FieldForm.MAP:
        return _merged_list(structure, live, config)
    return {name: _merged(structure.of(name), live.get(name, ABSENT), config.get(name, ABSENT)) for name in {**live, **config}}


def _merged_list(structure: Structure, live: Sequence[Any], config: Sequence[Any]) -> list[Any]:
    """Merge two lists. A live entry that is not in the configuration stays before the next live entry that is in it.

    If the live list has duplicates of an entry of the configuration, that entry replaces all of them. Other duplicates stay.
    """
    olds, news = by_element(structure, live), by_element(structure, config)
    element = structure.element or LEAF
    result = []
    for name, at in _merged_order([str(structure.names(entry)) for entry in live], list(news), olds):
        if name in news:
            same = olds.get(name, ())
            result.append(_merged(element, same[0] if len(same) == 1 else ABSENT, news[name][0]))
        else:
            result.append(live[at])
    return result


def _merged_order(live: Sequence[str], config: Sequence[str], olds: Container[str]) -> list[tuple[str, int]]:
    """Return the order of a merged list. Entries of both lists are in the configuration's order.

    The result has names with their index in the live list. The index is valid only for names that the configuration lacks.
    """
    known, done = set(config), set[str]()
    shared = [name for name in reversed(config) if name in olds]
    placed: list[tuple[str, int]] = []
    at, then = 0, 0
    while at < len(live) or then < len(config):
        mine = live[at] if at < len(live) else None
        theirs = config[then] if then < len(config) else None
        if mine is not None and mine not in known:
            placed.append((mine, at))
            at += 1
        elif mine is not None and mine != theirs and (theirs is None or (shared and shared[-1] != mine)):
            at += 1  # in the configuration, other entries precede this one
        else:
            placed.append((str(theirs), at))
            at += mine is not None and (mine == theirs or mine in done)
            then += 1
            done.add(str(theirs))
            if shared and shared[-1] == theirs:
                shared.pop()
    return placed


CONFLICT = "FieldManagerConflict"
Conflict = tuple[FieldWriter, FieldHolding, tuple[str, ...]]
"""The other owner of a field that an apply changes, all fields of that owner, and the path of the field."""


@dataclass(frozen=True, slots=True)
class Applied:
    """Result of an apply: document, owners and conflicts. `changed`: whether any field differs from the live document."""

    document: Document
    holdings: Mapping[FieldWriter, FieldHolding]
    conflicts: list[Conflict]
    changed: bool


def apply(
    versions: Versions, live: Document, config: Document, holdings: Holdings, applier: FieldWriter, *, time: str
) -> Applied:
    """Apply `config` to `live`, a document of the same version; {}: no object exists. `time`: the present time (RFC 3339).

    The result is that of a forced apply, together with the conflicts. The caller decides whether conflicts are an error.
    """
    version = str(config["apiVersion"])
    structure = _structure(versions, version)
    held = current(versions, holdings)
    last = held.pop(applier, None)
    said = fields_of(structure, config)
    own = FieldHolding(version, minus(said, NOBODYS), last.time if last else None)
    merged = merge(structure, live, config)
    # Nobody owns the name, but here it counts as applied. Otherwise the removal of the last label would remove the metadata.
    stays = {**held, applier: FieldHolding(version, said)}
    new = versions.converted(_pruned(versions, merged, stays, last), version) if last is not None else merged
    changed = comparisons(versions, live, new)
    has_changed = bool(changed(version))
    after = released(changed, held)
    if own.fields:
        after[applier] = FieldHolding(version, own.fields, time) if has_changed else own
    document = without_emptied(structure, new, merged)
    return Applied(document, after, conflicts(changed, held, applier), has_changed)


def _structure(versions: Versions, api_version: str) -> Structure:
    structure = versions.structure(api_version)
    if structure is None:
        msg = f"version {api_version} is not served"
        raise LookupError(msg)
    return structure


def _pruned(versions: Versions, merged: Document, held: Holdings, last: FieldHolding) -> Document:
    """Return `merged`, in the version of the last apply, without fields that only the applier owned and no longer applies.

    It first removes all fields of the last apply. Then it restores fields that have another owner or that the applier never
    owned.
    """
    structure = _structure(versions, last.api_version)
    whole = versions.converted(merged, last.api_version)
    removed = with_named(structure, last.fields)
    pruned: Document = without(structure, whole, removed)
    owned: dict[str, Fields] = {last.api_version: {}}  # this version comes first, because conversions may need its fields
    for holding in held.values():
        owned[holding.api_version] = union(owned.get(holding.api_version, {}), holding.fields)
    for version, fields in owned.items():
        if not fields:
            continue
        inner = _structure(versions, version)
        there, kept = versions.converted(merged, version), versions.converted(pruned, version)
        stays = union(_named_fields(inner, kept), with_named(inner, fields))
        pruned = without(inner, there, minus(_named_fields(inner, there), stays))
    pruned = versions.converted(pruned, last.api_version)
    gone = minus(_named_fields(structure, whole), _named_fields(structure, pruned))
    return without(structure, whole, common(gone, removed))


def _named_fields(structure: Structure, document: Document) -> Fields:
    return with_named(structure, fields_of(structure, document))


def conflicts(changed: InVersion, holdings: Holdings, applier: FieldWriter) -> list[Conflict]:
    """Return the fields that an apply changes and that have another owner."""
    found: list[Conflict] = []
    for writer, holding in sorted(holdings.items(), key=lambda item: item[0]):
        comparison = changed(holding.api_version)
        if writer != applier and comparison is not None:
            found.extend((writer, holding, path) for path in paths(common(holding.fields, comparison.written)))
    return found


def field_conflict_error(found: list[Conflict]) -> ConflictError:
    """Return the error with Kubernetes' messages. Each field has a cause with its owner."""
    causes = [Cause(CONFLICT, f"conflict with {_named(*each[:2])}", fieldset.shown(each[2])) for each in found]
    if len(found) == 1:
        text = f"Apply failed with 1 conflict: {causes[0].message}: {causes[0].field}"
        return ConflictError(text, subject=ErrorSubject(), causes=causes)
    by_holder: dict[str, list[str]] = {}
    for writer, holding, path in found:
        by_holder.setdefault(f"conflicts with {_named(writer, holding)}:", []).append(f"- {fieldset.shown(path)}")
    lines = [line for holder, fields in by_holder.items() for line in (holder, *fields)]
    text = f"Apply failed with {len(found)} conflicts: " + "\n".join(lines)
    return ConflictError(text, subject=ErrorSubject(), causes=causes)


def _named(writer: FieldWriter, holding: FieldHolding) -> str:
    part = f' with subresource "{writer.subresource}"' if writer.subresource else ""
    using = f" using {holding.api_version}" if writer.operation is Operation.UPDATE else ""
    return f'"{writer.manager}"{part}{using}'
