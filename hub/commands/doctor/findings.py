"""What was looked at, and how it is."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from http.client import HTTPException

from machinery.errors import MusterError


class State(StrEnum):
    """In the words that are printed."""

    WELL = "ok"
    WARNING = "warning"
    """The hub works; something will not, or not everywhere."""
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `advice`: what to do, where it is not well."""

    name: str
    state: State
    said: str
    advice: str = ""


def well(name: str, said: str) -> Finding:
    return Finding(name, State.WELL, said)


def warning(name: str, said: str, advice: str) -> Finding:
    return Finding(name, State.WARNING, said, advice)


def broken(name: str, said: str, advice: str) -> Finding:
    return Finding(name, State.BROKEN, said, advice)


Look = Callable[[], Awaitable[Iterable[Finding]]]


async def looked(name: str, look: Look, advice: str) -> list[Finding]:
    """What a look found; one that fails with an error of ours is a finding too."""
    try:
        return list(await look())
    except MusterError as error:
        return [broken(name, error.message, advice)]
    except HTTPException as error:
        return [broken(name, f"no answer of HTTP: {type(error).__name__}", advice)]
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return [broken(name, f"{place}{error.strerror or error}", advice)]
