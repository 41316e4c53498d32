"""The list of hubs from all sources, in order."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import structlog

from machinery.errors import InvalidError
from machinery.identity import HubId
from spoke.bootstraps.sources import Bootstrap, BootstrapSource, MissingBootstrapError
from spoke.credentials.kubeconfigs import HubConnection

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BootstrapListing:
    """The hubs in the order of preference, each once, and the errors of unusable sources."""

    hubs: tuple[Bootstrap, ...] = ()
    troubles: tuple[InvalidError, ...] = ()
    whole: bool = True
    """Every source was read or does not exist; then a hub that is not on the list is meant to be absent."""

    def get(self, hub_id: HubId) -> Bootstrap | None:
        return next((hub for hub in self.hubs if hub.hub_id == hub_id), None)

    @property
    def trouble(self) -> InvalidError | None:
        """Why the list is empty or incomplete."""
        if not self.troubles:
            return None
        return InvalidError("; ".join(error.message for error in self.troubles))


class Bootstraps:
    """The ordered sources. `look` keeps the last valid content of each."""

    def __init__(self, sources: Sequence[BootstrapSource]) -> None:
        self.sources = tuple(sources)
        self._names = _distinct(sources)
        self._last: dict[int, Bootstrap] = {}
        self._told: dict[int, str] = {}

    @property
    def source(self) -> str:
        """The origins of the list, for messages."""
        return ", ".join(each.source for each in self.sources)

    def signature(self) -> Hashable:
        """Changes when a source does."""
        return tuple(source.signature() for source in self.sources)

    async def load(self) -> None:
        """Load all sources; to be awaited before the first `look`."""
        for source in self.sources:
            await source.load()

    def first(self) -> HubConnection:
        """The preferred hub. Raises InvalidError with the defect and what to do."""
        listing = self.look()
        if listing.hubs:
            return listing.hubs[0].connection
        raise listing.trouble or InvalidError("there is no bootstrap kubeconfig: set --bootstrap-kubeconfig")

    def look(self) -> BootstrapListing:
        """The present list. Logs the defect of a source once."""
        hubs: dict[HubId, Bootstrap] = {}
        troubles: list[InvalidError] = []
        whole = True
        for number, source in enumerate(self.sources):
            trouble = ""
            try:
                self._last[number] = Bootstrap(self._names[number], source.source, source.read())
            except MissingBootstrapError as error:
                self._last.pop(number, None)
                troubles.append(error)
                trouble = error.message
            except InvalidError as error:
                whole = whole and number in self._last
                troubles.append(error)
                trouble = error.message
            found = self._last.get(number)
            if found is not None and hubs.setdefault(found.hub_id, found) is not found:
                trouble = trouble or f"it is for the same hub as {hubs[found.hub_id].source}, which comes first"
            self._tell(number, trouble)
        return BootstrapListing(tuple(hubs.values()), tuple(troubles), whole)

    def _tell(self, number: int, trouble: str) -> None:
        if trouble and self._told.get(number) != trouble:
            log.warning("bootstrap.unusable", source=self.sources[number].source, error=trouble)
        self._told[number] = trouble


def _distinct(sources: Sequence[BootstrapSource]) -> tuple[str, ...]:
    """Their names; the origin instead where two sources share a name."""
    taken = Counter(source.name for source in sources)
    return tuple(source.name if taken[source.name] == 1 else source.source for source in sources)
