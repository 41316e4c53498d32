"""Files with secrets: written atomically and readable only by their owner."""

import os
import tempfile
from pathlib import Path
from typing import Self

from hubctl.errors import CommandError


class PrivateFile:
    """A file readable only by its owner. It replaces the target when the block ends without error, else it is deleted."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Self:
        try:
            descriptor, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
        except OSError as error:
            raise CommandError(f"{self._path} cannot be written: {error.strerror}") from None
        self._descriptor, self._name = descriptor, name
        return self

    def write(self, content: bytes) -> None:
        with os.fdopen(os.dup(self._descriptor), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        os.close(self._descriptor)
        if kind is not None:
            Path(self._name).unlink(missing_ok=True)
            return
        Path(self._name).replace(self._path)
