"""Standard output and error of a command whose reader may leave: the command goes on to its exit code."""

import errno
import io
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _Output(io.RawIOBase):
    """A file whose writes succeed after its reader has left, unless `ends` is set."""

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self.has_left = False
        """Whether a write has found no reader."""
        self.ends = False
        """Whether such a write raises BrokenPipeError."""

    def write(self, content: "ReadableBuffer", /) -> int | None:
        try:
            return self._file.write(content)
        except BrokenPipeError:
            self.has_left = True
            if self.ends:
                raise
            return memoryview(content).nbytes

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def isatty(self) -> bool:
        return self._file.isatty()


def outlive_readers() -> None:
    """From now on this process writes to closed pipes without an error, so that its exit code is its own."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        buffer = getattr(stream, "buffer", None)
        file = getattr(buffer, "raw", buffer)  # without a buffer where Python runs unbuffered
        if not isinstance(file, io.FileIO) or file.fileno() != number:
            continue
        by_line = stream.line_buffering or file is buffer
        writer = io.BufferedWriter(_Output(file))
        setattr(sys, name, io.TextIOWrapper(writer, stream.encoding, stream.errors, line_buffering=by_line))


def end_with_reader() -> None:
    """From now on a write to a closed standard output raises BrokenPipeError, as this does: for output without an end."""
    output = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(output, _Output):
        sys.stdout.flush()
        output.ends = True
        if output.has_left:
            raise BrokenPipeError(errno.EPIPE, "the reader has left")
