"""The list of hubs from all sources of bootstrap kubeconfigs, in order: files, then secrets of the component namespace."""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import structlog

from machinery.client.kubeconfig import parse_kubeconfig
from machinery.errors import InvalidError, MusterError
from machinery.identity import HubId
from machinery.observability.logs import LogOnce
from spoke.credentials.kubeconfigs import ANY_REACH, HubConnection, connection_of
from spoke.domain.credential import KUBECONFIG
from spoke.domain.route import Reach
from spoke.ports.cluster import Secrets, SecretSnapshot

log = structlog.get_logger(__name__)


_MAKE = "make one with hubctl create bootstrap-kubeconfig"


class MissingBootstrapError(InvalidError):
    """The file or secret does not exist; its hub leaves the list."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    name: str
    """The agent's name for the hub, from the file or the secret."""
    source: str
    connection: HubConnection

    @property
    def hub_id(self) -> HubId:
        return self.connection.hub_id


class BootstrapSource(Protocol):
    """One file or secret with a bootstrap kubeconfig. Its content may be replaced at any time."""

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> str:
        """Description of the file or secret, for messages."""

    def signature(self) -> Hashable:
        """Return a value that changes with the content, without network I/O. It is falsy while there is no content."""

    def read(self) -> HubConnection:
        """Parse the loaded content. Raises MissingBootstrapError; InvalidError with the defect and the remedy."""

    async def load(self) -> None:
        """Fetch the content if `read` needs this. Does not raise if the source is unavailable."""

    def changes(self) -> AsyncIterator[None] | None:
        """Yield after each change of the content; None: the caller must poll `signature`."""


class BootstrapFile(BootstrapSource):
    """A bootstrap kubeconfig in a file. Each call reads the file."""

    def __init__(self, path: Path, reach: Reach = ANY_REACH) -> None:
        self.path = path
        self._reach = reach

    @property
    def name(self) -> str:
        """The file's name without suffix; its folder's name if the file is called `kubeconfig`, as in mounted secrets."""
        folder = self.path.absolute().parent.name
        return folder if self.path.stem == KUBECONFIG and folder else self.path.stem

    @property
    def source(self) -> str:
        return str(self.path)

    def signature(self) -> Hashable:
        with suppress(OSError):
            status = self.path.stat()
            return status.st_ino, status.st_size, status.st_mtime_ns
        return ()

    def read(self) -> HubConnection:
        try:
            text = self.path.read_bytes()
        except OSError as error:
            gone = isinstance(error, FileNotFoundError | NotADirectoryError)
            raise (MissingBootstrapError if gone else InvalidError)(
                f"bootstrap kubeconfig {self.path} cannot be read: {error.strerror or error}; {_MAKE}"
            ) from None
        return connection_of(parse_kubeconfig(text, source=self.source, folder=self.path.parent), self._reach)

    async def load(self) -> None:
        """Do nothing, because `read` reads the file."""

    def changes(self) -> None:
        return None


class BootstrapSecret(BootstrapSource):
    """A bootstrap kubeconfig in the key `kubeconfig` of a secret. Files in the kubeconfig are other keys of the secret."""

    def __init__(self, secrets: Secrets, name: str, reach: Reach = ANY_REACH) -> None:
        self._secrets = secrets
        self._name = name
        self._reach = reach
        self._snapshot: SecretSnapshot | None = None
        self._unread = "it was not read yet"

    @property
    def name(self) -> str:
        return self._name

    @property
    def source(self) -> str:
        return f"secret {self._name}"

    def signature(self) -> Hashable:
        if self._snapshot is None or self._snapshot.version is None:
            return ()
        return tuple(sorted(self._snapshot.contents.items()))

    def read(self) -> HubConnection:
        if self._snapshot is None:
            raise InvalidError(f'the bootstrap kubeconfig in secret "{self._name}" cannot be read: {self._unread}')
        contents = self._snapshot.contents
        if self._snapshot.version is None:
            raise MissingBootstrapError(
                f'there is no secret "{self._name}" with a bootstrap kubeconfig: {_MAKE} and put it in, as key {KUBECONFIG}'
            )
        if not contents.get(KUBECONFIG, b"").strip():
            raise InvalidError(f'secret "{self._name}" has no key {KUBECONFIG}: {_MAKE} and put it in under that key')
        kubeconfig = parse_kubeconfig(contents[KUBECONFIG], source=f"in secret {self._name}", folder=contents)
        return connection_of(kubeconfig, self._reach)

    async def load(self) -> None:
        """Read the secret once; afterwards `changes` keeps it up to date."""
        if self._snapshot is not None:
            return
        try:
            self._snapshot = await self._secrets.read(self._name)
        except MusterError as error:
            self._unread = error.message

    async def changes(self) -> AsyncIterator[None]:
        # Every implementation of `Secrets.changes` is a generator that keeps a connection open until it is closed.
        async with aclosing(cast("AsyncGenerator[SecretSnapshot, None]", self._secrets.changes(self._name))) as snapshots:
            async for snapshot in snapshots:
                self._snapshot = snapshot
                yield


@dataclass(frozen=True, slots=True)
class BootstrapListing:
    """The hubs in the order of preference, without duplicates, and the errors of unusable sources."""

    hubs: tuple[Bootstrap, ...] = ()
    errors: tuple[InvalidError, ...] = ()
    whole: bool = True
    """Whether each source was read (now or earlier) or does not exist. True: missing hubs were removed on purpose."""

    def get(self, hub_id: HubId) -> Bootstrap | None:
        return next((hub for hub in self.hubs if hub.hub_id == hub_id), None)

    @property
    def error(self) -> InvalidError | None:
        if not self.errors:
            return None
        return InvalidError("; ".join(error.message for error in self.errors))


class Bootstraps:
    """The sources of the hub list, in order. `read` uses the last valid content of each source."""

    def __init__(self, sources: Sequence[BootstrapSource]) -> None:
        self.sources = tuple(sources)
        self._names = _distinct(sources)
        self._last: dict[int, Bootstrap] = {}
        self._logs = [LogOnce(log) for _ in self.sources]

    @property
    def source(self) -> str:
        return ", ".join(each.source for each in self.sources)

    def signature(self) -> Hashable:
        """Return a value that changes with the content of any source."""
        return tuple(source.signature() for source in self.sources)

    async def load(self) -> None:
        """Load all sources. Await this before the first `read`."""
        for source in self.sources:
            await source.load()

    def first(self) -> HubConnection:
        """Return the connection to the preferred hub. Raises InvalidError, with defect and remedy, if the list has no hub."""
        listing = self.read()
        if listing.hubs:
            return listing.hubs[0].connection
        raise listing.error or InvalidError("there is no bootstrap kubeconfig: set --bootstrap-kubeconfig")

    def read(self) -> BootstrapListing:
        """Return the present hub list. Log the defect of a source once."""
        hubs: dict[HubId, Bootstrap] = {}
        errors: list[InvalidError] = []
        whole = True
        for number, source in enumerate(self.sources):
            trouble = ""
            try:
                self._last[number] = Bootstrap(self._names[number], source.source, source.read())
            except MissingBootstrapError as error:
                self._last.pop(number, None)
                errors.append(error)
                trouble = error.message
            except InvalidError as error:
                whole = whole and number in self._last
                errors.append(error)
                trouble = error.message
            found = self._last.get(number)
            if found is not None and hubs.setdefault(found.hub_id, found) is not found:
                trouble = trouble or f"it is for the same hub as {hubs[found.hub_id].source}, which comes first"
            if trouble:
                self._logs[number].warning("bootstrap.unusable", trouble, source=source.source)
            else:
                self._logs[number].reset()
        return BootstrapListing(tuple(hubs.values()), tuple(errors), whole)


def _distinct(sources: Sequence[BootstrapSource]) -> tuple[str, ...]:
    """Return a name for each source: its `name`, or its `source` if another source has the same name."""
    taken = Counter(source.name for source in sources)
    return tuple(source.name if taken[source.name] == 1 else source.source for source in sources)
