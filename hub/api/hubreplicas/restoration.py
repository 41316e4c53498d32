"""What a hub knows of its own restores: which certificates it may have signed and has no record of, and what is made of them.

Between the making of a backup and its restore the hub went on, and nothing of that is known any more. A certificate of one of
its CAs that began within such a time, and has no record, was lost with it; any other without a record is none of its own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from hub.api.certificates.certificate import BACKDATED
from machinery.meta.timestamps import format_micro_time, parse_time

FACT = "restorations"
KEPT = 10
"""Restores that are remembered, the newest: what was signed before them has ended."""
SLACK = timedelta(minutes=5)
"""The clocks of databases and replicas differ."""


class Readopts(StrEnum):
    """What becomes of agents whose certificates were signed after the backup."""

    AUTOMATIC = "automatic"
    """They come back by their recovery certificate, as an agent does whose certificate has ended."""
    APPROVAL = "approval"
    """Somebody approves each."""
    NEVER = "never"
    """They register anew with a bootstrap credential."""


@dataclass(frozen=True, slots=True)
class Restoration:
    """One restore. `made`: of the backup; `at`: when it was restored; both in the database's time."""

    made: datetime
    at: datetime
    readopts: Readopts = Readopts.AUTOMATIC

    def covers(self, not_before: datetime) -> bool:
        """Whether a certificate that begins then may have been signed after the backup."""
        return self.made - BACKDATED - SLACK <= not_before <= self.at + SLACK

    def as_fact(self) -> dict[str, str]:
        return {"made": format_micro_time(self.made), "at": format_micro_time(self.at), "readopts": self.readopts.value}


def read(facts: Iterable[Mapping[str, Any]]) -> tuple[Restoration, ...]:
    """What `as_fact` wrote."""
    return tuple(
        Restoration(parse_time(str(each["made"])), parse_time(str(each["at"])), Readopts(each["readopts"])) for each in facts
    )


def covering(restorations: Iterable[Restoration], not_before: datetime) -> Restoration | None:
    """The newest restore that lost a certificate which begins then, where it lets agents come back; None: there is none."""
    found = [each for each in restorations if each.covers(not_before)]
    newest = max(found, key=lambda each: each.at, default=None)
    return None if newest is None or newest.readopts is Readopts.NEVER else newest
