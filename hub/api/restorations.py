"""Restores of the hub: unknown certificates that it may have signed, and whether their agents may return.

A restore loses the records that were written after the backup. So the hub can lack the record of a certificate that one of its
CAs signed between a backup and its restore.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from hub.api.certificates import BACKDATED
from machinery.meta.timestamps import format_micro_time, parse_time

FACT = "restorations"
KEPT = 10
"""Number of newest restores that the hub remembers. Certificates that only older restores cover have normally expired."""
SLACK = timedelta(minutes=5)
"""Tolerance for differences between the clocks of databases and replicas."""


class Readopts(StrEnum):
    """How the hub handles agents whose certificates were signed after the backup."""

    AUTOMATIC = "automatic"
    """These agents return with their recovery certificate, like agents with an expired certificate."""
    APPROVAL = "approval"
    """An operator must approve each of these agents."""
    NEVER = "never"
    """These agents register again with a bootstrap credential."""


@dataclass(frozen=True, slots=True)
class Restoration:
    """One restore. `made`: time of the backup; `at`: time of the restore; by the database's clock."""

    made: datetime
    at: datetime
    readopts: Readopts = Readopts.AUTOMATIC

    def covers(self, not_before: datetime) -> bool:
        """Whether a certificate with this start may have been signed after the backup."""
        return self.made - BACKDATED - SLACK <= not_before <= self.at + SLACK

    def as_fact(self) -> dict[str, str]:
        return {"made": format_micro_time(self.made), "at": format_micro_time(self.at), "readopts": self.readopts.value}


def read(facts: Iterable[Mapping[str, Any]]) -> tuple[Restoration, ...]:
    """Parse restores that `as_fact` has encoded."""
    return tuple(
        Restoration(parse_time(str(each["made"])), parse_time(str(each["at"])), Readopts(each["readopts"])) for each in facts
    )


def covering(restorations: Iterable[Restoration], not_before: datetime) -> Restoration | None:
    """Return the newest restore that covers a certificate with this start; None if no restore does, or if it readopts NEVER."""
    found = [each for each in restorations if each.covers(not_before)]
    newest = max(found, key=lambda each: each.at, default=None)
    return None if newest is None or newest.readopts is Readopts.NEVER else newest
