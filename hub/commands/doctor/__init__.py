"""`hub doctor`: checks everything that a hub depends on, and connects to its doors as a client. Prints advice.

The command only reads: it migrates nothing and takes no lock, so that it can run while the hub runs.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import StrEnum

from machinery.errors import MusterError


class DoctorState(StrEnum):
    """States of a check. `hub doctor` prints the values."""

    WELL = "ok"
    WARNING = "warning"
    """The hub works, but a part of it fails or will fail."""
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """The result of a check. `advice`: what to do after a failure or a warning."""

    name: str
    state: DoctorState
    message: str
    advice: str = ""


def well(name: str, message: str) -> DoctorFinding:
    return DoctorFinding(name, DoctorState.WELL, message)


def warning(name: str, message: str, advice: str) -> DoctorFinding:
    return DoctorFinding(name, DoctorState.WARNING, message, advice)


def broken(name: str, message: str, advice: str) -> DoctorFinding:
    return DoctorFinding(name, DoctorState.BROKEN, message, advice)


Check = Callable[[], AsyncIterator[DoctorFinding]]


async def findings_of(name: str, check: Check, advice: str) -> list[DoctorFinding]:
    """Run a check and return its findings. After a MusterError or OSError, return one broken finding, with `advice`."""
    try:
        return [finding async for finding in check()]
    except MusterError as error:
        message = error.message
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        message = f"{place}{error.strerror or error}"
    return [broken(name, message, advice)]
