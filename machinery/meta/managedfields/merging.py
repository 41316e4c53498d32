"""Merge of an applied configuration into a live document: its fields win, other fields stay."""

from collections.abc import Mapping, Sequence
from typing import Any

from machinery.meta.managedfields.comparing import ABSENT, by_element
from machinery.meta.managedfields.structure import LEAF, FieldForm, Structure


def merge(structure: Structure, live: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Merge. The entries of list maps and sets follow the configuration's order."""
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
    return _merged_map(structure, live, config) if form is FieldForm.MAP else _merged_list(structure, live, config)


def _merged_map(structure: Structure, live: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _merged(structure.of(name), live.get(name, ABSENT), config.get(name, ABSENT)) for name in {**live, **config}}


def _merged_list(structure: Structure, live: Sequence[Any], config: Sequence[Any]) -> list[Any]:
    """Live entries that the configuration does not name stay before the next entry that it names.

    An entry that exists several times is replaced by the configuration's; other duplicates in the live list stay.
    """
    olds, news = by_element(structure, live), by_element(structure, config)
    element = structure.element or LEAF
    shared = [name for name in news if name in olds]
    order = _Order([str(structure.names(entry)) for entry in live], list(news), shared)
    result = []
    for name, at in order.places():
        if name in news:
            same = olds.get(name, ())
            result.append(_merged(element, same[0] if len(same) == 1 else ABSENT, news[name][0]))
        else:
            result.append(live[at])
    return result


class _Order:
    """Order of a merged list: walks both lists, with shared entries in the configuration's order."""

    def __init__(self, live: Sequence[str], config: Sequence[str], shared: Sequence[str]) -> None:
        self._live = live
        self._config = config
        self._known = set(config)
        self._shared = list(reversed(shared))

    def places(self) -> list[tuple[str, int]]:
        """Names with their index in the live list; the index is only valid for names that the configuration lacks."""
        placed: list[tuple[str, int]] = []
        done: set[str] = set()
        at, then = 0, 0
        while at < len(self._live) or then < len(self._config):
            mine = self._live[at] if at < len(self._live) else None
            theirs = self._config[then] if then < len(self._config) else None
            if mine is not None and mine not in self._known:
                placed.append((mine, at))
                at += 1
            elif mine is not None and mine != theirs and (theirs is None or self._comes_later(mine)):
                at += 1
            else:
                placed.append((str(theirs), at))
                at += mine is not None and (mine == theirs or mine in done)
                then += 1
                done.add(str(theirs))
                if self._shared and self._shared[-1] == theirs:
                    self._shared.pop()
        return placed

    def _comes_later(self, name: str) -> bool:
        """Whether a shared entry must wait, because others precede it in the configuration."""
        return bool(self._shared) and self._shared[-1] != name
