"""Discovery of the kinds that the hub serves, by plural, singular, short name or kind, with or without group, as in kubectl."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from hubctl.client.http import JSON, ApiClient
from hubctl.client.resources import ALL, ResourceKind, known_resource
from hubctl.errors import CommandError
from hubctl.suggestions import closest

AGGREGATED = f"{JSON};g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


@dataclass(frozen=True, slots=True)
class ServedKind:
    """A kind in one version, according to discovery."""

    resource: ResourceKind
    verbs: frozenset[str]
    short_names: tuple[str, ...]
    preferred: bool
    """Whether it is in the preferred version."""

    def answers_to(self, word: str) -> bool:
        """Whether `word` names it: `crt`, `certs.example.org`, `certs.v1.example.org`."""
        name, _, rest = word.partition(".")
        if not rest:
            return self.preferred and name in self.resource.words
        _, _, version = self.resource.group_version.rpartition("/")
        spelled = ((self.resource.group,) if self.preferred else ()) + (f"{version}.{self.resource.group}",)
        return name in self.resource.words and rest in spelled


class Catalogue:
    """The kinds that one hub serves; requested once, when needed."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    def named(self, word: str) -> ResourceKind:
        """The kind for a word. Raises CommandError with a suggestion."""
        known = known_resource(word)
        if known is not None:
            asked = self._client.spelled(known.group_version)
            return known if asked == known.group_version else replace(known, group_version=asked)
        found = next((served.resource for served in self.served if served.answers_to(word.lower())), None)
        if found is None:
            raise CommandError(f'there is no kind "{word}"{self._meant(word)}', code=2)
        return found

    def of_kind(self, api_version: str, kind: str) -> ResourceKind:
        """The kind that a manifest names. Raises CommandError."""
        asked = self._client.spelled(api_version)
        for served in self.served:
            if (served.resource.group_version, served.resource.kind) == (asked, kind):
                return served.resource
        kinds = [served.resource.kind for served in self.served if served.resource.group_version == asked]
        meant = closest(kind, kinds) or (f": it serves {', '.join(kinds)}" if kinds else "")
        raise CommandError(f"the hub does not serve {kind} in {api_version}{meant}", reason="NotFound")

    @cached_property
    def served(self) -> tuple[ServedKind, ...]:
        """In the hub's order, which decides about ambiguous words."""
        pages = (self._client.get(path, accept=AGGREGATED) for path in ("/api", "/apis"))
        return tuple(served for page in pages for served in _read(page.get("items") or ()))

    def _meant(self, word: str) -> str:
        plain = word.lower().partition(".")[0]
        words = [
            *(word for resource in ALL for word in resource.words),
            *(s.resource.plural for s in self.served if s.preferred),
        ]
        return closest(plain, words) or ": `hubctl api-resources` lists what there is"


def _read(groups: Iterable[Mapping[str, Any]]) -> Iterator[ServedKind]:
    for group in groups:
        name = str((group.get("metadata") or {}).get("name") or "")
        seen: set[str] = set()
        for version in group.get("versions") or ():
            for entry in version.get("resources") or ():
                yield _served(f"{name}/{version['version']}" if name else version["version"], entry, seen)


def _served(group_version: str, entry: Mapping[str, Any], seen: set[str]) -> ServedKind:
    plural, kind = str(entry["resource"]), str(entry["responseKind"]["kind"])
    preferred = plural not in seen
    seen.add(plural)
    short = tuple(entry.get("shortNames") or ())
    singular = str(entry.get("singularResource") or kind.lower())
    verbs = frozenset(entry.get("verbs") or ())
    resource = ResourceKind(
        tuple(dict.fromkeys((plural, singular, kind.lower(), *short))),
        group_version,
        plural,
        kind,
        singular,
        namespaced=entry.get("scope") == "Namespaced",
        watchable="watch" in verbs,
    )
    return ServedKind(_dressed(resource), verbs, short, preferred)


def _dressed(resource: ResourceKind) -> ResourceKind:
    """The kind with the noun and width that hubctl has for known kinds."""
    for known in ALL:
        # Group suffixes differ between hubs; the first label of a group and the plural do not.
        if (known.plural, known.group.partition(".")[0]) == (resource.plural, resource.group.partition(".")[0]):
            return replace(resource, noun=known.noun, wide=known.wide)
    return resource
