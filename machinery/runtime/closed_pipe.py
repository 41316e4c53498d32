"""Standard output and error of a command that continues after the reader has closed the pipe."""

import errno
import io
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _Output(io.RawIOBase):
    """A file whose writes succeed even after the reader has closed the pipe, unless `ends` is set."""

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self.has_left = False
        """Whether a write failed with a broken pipe."""
        self.ends = False
        """Whether writes raise BrokenPipeError after the reader has closed the pipe."""

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


def ignore_closed_pipe() -> None:
    """Make writes to closed pipes succeed, so that the exit code does not depend on the reader."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        buffer = getattr(stream, "buffer", None)
        file = getattr(buffer, "raw", buffer)  # without buffering (python -u) there is no buffer
        if not isinstance(file, io.FileIO) or file.fileno() != number:
            continue
        by_line = stream.line_buffering or file is buffer
        writer = io.BufferedWriter(_Output(file))
        setattr(sys, name, io.TextIOWrapper(writer, stream.encoding, stream.errors, line_buffering=by_line))


def end_with_reader() -> None:
    """Make later writes to a closed standard output raise BrokenPipeError, so that a command with endless output ends.

    Raises BrokenPipeError if the pipe is already closed.
    """
    output = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(output, _Output):
        sys.stdout.flush()
        output.ends = True
        if output.has_left:
            raise BrokenPipeError(errno.EPIPE, "the reader has left")
