"""Parse `sortBy` and `groupBy` for clusters: fields of `where`, and in `sortBy` also paths of kubectl's `--sort-by`."""

import re
from collections.abc import Mapping, Sequence

from hub.api.meta.ordering import By, Facet, SortOrder
from hub.api.query.query_fields import facet_of
from machinery.errors import BadRequestError
from machinery.meta.objects import SortPosition

MOST = 4
"""Largest number of keys in one order or grouping."""
_PART = re.compile(r"""(?:[^,"']|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')+""")
_PATHS: Mapping[str, str] = {
    ".metadata.name": "name",
    ".metadata.creationTimestamp": "-age",
    ".spec.hubAcceptsClient": "accepted",
    ".status.version.kubernetes": "version",
}
_MAPS = (".metadata.labels", ".status.capacity", ".status.allocatable")
"""Paths of maps; the last element is the field's name."""


def sort_of(text: str, after: SortPosition | None = None) -> SortOrder:
    """Parse for example `-memory,name`; `-` means descending. Raises BadRequestError."""
    keys = tuple(_key(part) for part in _parts(text, "sortBy"))
    if after is not None and len(after) != len(keys):
        raise BadRequestError("invalid continue token: it belongs to another order")
    return SortOrder(keys, after)


def groups_of(text: str) -> tuple[Facet, ...]:
    """Parse for example `version,labels["env"]`. Raises BadRequestError."""
    facets = tuple(facet_of(part, "groupBy") for part in _parts(text, "groupBy"))
    for facet in facets:
        if facet.is_instant:
            raise BadRequestError(
                f"groupBy: {facet.word} is another for every cluster: count those of a condition, as in where={facet.word} > 1h"
            )
    return facets


def _parts(text: str, what: str) -> Sequence[str]:
    found = [part.strip() for part in _PART.findall(text)]
    if not found or not all(found) or (text.count(",") and text.strip().endswith(",")):
        raise BadRequestError(f"{what}: give words with commas between, as in version,name")
    if len(found) > MOST:
        raise BadRequestError(f"{what}: at most {MOST} words, not {len(found)}")
    return found


def _key(part: str) -> By:
    falls, word = part.startswith("-"), part.removeprefix("-").strip()
    translated = _translated(word)
    return By(facet_of(translated.removeprefix("-"), "sortBy"), falls != translated.startswith("-"))


def _translated(word: str) -> str:
    """The field for a path of kubectl's `--sort-by`; other text is returned unchanged."""
    path = word.removeprefix("{").removesuffix("}")
    if not path.startswith("."):
        return word
    known = _PATHS.get(path)
    if known is not None:
        return known
    for place in _MAPS:
        if path.startswith(f"{place}."):
            entry = path.removeprefix(f"{place}.").replace("\\.", ".").replace('"', "")
            return f'{place.rpartition(".")[2]}["{entry}"]'
    raise BadRequestError(
        f"sortBy: there is no word for the path {word[:80]}: use a word of the language, as in version, memory or "
        'labels["env"], or sort what is listed with kubectl'
    )
