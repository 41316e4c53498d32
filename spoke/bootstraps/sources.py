"""Where one bootstrap kubeconfig comes from: a file, or a secret of the component namespace."""

from collections.abc import AsyncGenerator, AsyncIterator, Hashable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from machinery.client.kubeconfig import parse_kubeconfig
from machinery.errors import InvalidError, MusterError
from machinery.identity import HubId
from spoke.credentials.kubeconfigs import HOWEVER, HubConnection, connection_of
from spoke.domain.credential import KUBECONFIG
from spoke.domain.route import Reach
from spoke.ports import Secrets, SecretSnapshot

_MAKE = "make one with hubctl create bootstrap-kubeconfig"


class MissingBootstrapError(InvalidError):
    """There is no such file or secret: whatever hub it named is named no more."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """One hub of the list, and how to ask it for a certificate."""

    name: str
    """How the agent calls the hub: after the file or the secret."""
    source: str
    """Where it comes from, for people."""
    connection: HubConnection

    @property
    def hub_id(self) -> HubId:
        return self.connection.hub_id


class BootstrapSource(Protocol):
    """One source; others may replace its content at any time."""

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> str:
        """For people."""

    def signature(self) -> Hashable:
        """Another one after every change, as far as is known without asking anybody; falsy while there is nothing."""

    def read(self) -> HubConnection:
        """What is there, as far as is known. Raises MissingBootstrapError; InvalidError, with what is wrong and what to do."""

    async def load(self) -> None:
        """Asks, where that is needed before anything is known. Never raises for a source that cannot be had."""

    def changes(self) -> AsyncIterator[None] | None:
        """Tells after each change; None: `signature` is to be compared now and then instead."""


class BootstrapFile(BootstrapSource):
    """A file, looked at whenever it is asked for."""

    def __init__(self, path: Path, reach: Reach = HOWEVER) -> None:
        self.path = path
        self._reach = reach

    @property
    def name(self) -> str:
        """The file's, without its ending; its folder's where all are called `kubeconfig`, as mounted secrets are."""
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
        """A file is read when it is asked for."""

    def changes(self) -> None:
        return None


class BootstrapSecret(BootstrapSource):
    """The key `kubeconfig` of a secret; other files that it names are further keys of the secret, as OCM has it."""

    def __init__(self, secrets: Secrets, name: str, reach: Reach = HOWEVER) -> None:
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
        """Once; afterwards `changes` knows better."""
        if self._snapshot is not None:
            return
        try:
            self._snapshot = await self._secrets.read(self._name)
        except MusterError as error:
            self._unread = error.message

    async def changes(self) -> AsyncIterator[None]:
        # every implementation of the port is a generator, and has a connection to let go
        async with aclosing(cast("AsyncGenerator[SecretSnapshot, None]", self._secrets.changes(self._name))) as snapshots:
            async for snapshot in snapshots:
                self._snapshot = snapshot
                yield
