"""Faults of a hollow cluster, as a value that can be replaced while it runs."""

import re
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Self

from machinery.errors import InvalidError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}


@dataclass(frozen=True, slots=True)
class Faults:
    """Without arguments: no fault. The admin path and the command line use the field names with dashes."""

    slow: timedelta = timedelta()
    """Delay of every response, probes included."""
    error: bool = False
    """Every API request, probes included, is answered with 500."""
    hang: bool = False
    """Every request is accepted and never answered."""
    not_live: bool = False
    """/livez and /healthz fail; the API works."""
    no_livez: bool = False
    """/livez returns 404, as before Kubernetes 1.16; /healthz is served."""
    refuse_secret_writes: bool = False
    """Creating, changing and deleting secrets is forbidden."""
    stall_before_write: int = 0
    """The n-th write of a secret from now on, and every later one, is neither executed nor answered."""
    stall_after_write: int = 0
    """The n-th write of a secret from now on is executed and not answered; later ones are neither executed nor answered."""

    @classmethod
    def named(cls, *settings: str) -> Self:
        """Parse words of the command line: `error`, `not-live`, `slow=2s`. Raises InvalidError that lists the known words."""
        return cls.from_document(dict(_parsed(setting) for setting in settings))

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Self:
        """From what the admin path is sent: every fault not named is off. Raises InvalidError."""
        known = {field.name.replace("_", "-"): field.name for field in fields(cls)}
        if unknown := sorted(set(document) - set(known)):
            raise InvalidError(f'no fault is called "{unknown[0]}": use {", ".join(sorted(known))}')
        return cls(**{known[word]: _read(word, value) for word, value in document.items()})

    def document(self) -> dict[str, Any]:
        """The active faults as a JSON document."""
        on = {field.name.replace("_", "-"): getattr(self, field.name) for field in fields(self)}
        on["slow"] = f"{self.slow.total_seconds():g}s" if self.slow else False
        return {word: value for word, value in on.items() if value}


def _parsed(setting: str) -> tuple[str, Any]:
    word, equals, value = setting.partition("=")
    return word, value if equals else True


def _read(word: str, value: object) -> Any:
    if word == "slow":
        return _duration(value)
    if word.startswith("stall-"):
        return _count(word, value)
    return value is True


def _count(word: str, value: object) -> int:
    if not str(value).isdecimal() or not int(str(value)):
        raise InvalidError(f"{word} needs a number from 1 on: {word}=3")
    return int(str(value))


def _duration(value: object) -> timedelta:
    match = _DURATION.fullmatch(str(value))
    if not match:
        raise InvalidError("slow needs a duration: slow=2s, slow=500ms")
    return timedelta(seconds=float(match[1]) * _UNITS[match[2]])


HEALTHY = Faults()
