"""`hub audit verify`: reads every chain from its beginning to its end, in a database or in a file, and says where it breaks."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hub.audit.lines import link_of
from hub.domain.chain import Breach, Head, Link, Verification
from hub.ports import Store
from hub.services import audit
from machinery.errors import InvalidError

PAGE = 1_000
Noted = Mapping[str, Mapping[int, str]]
"""By replica: sequence and hash of links that somebody has noted."""
_NOTE = re.compile(r"([^:\s]+):([1-9][0-9]*):([0-9a-f]{64})")


@dataclass(slots=True)
class Report:
    """What came of one chain."""

    verification: Verification
    first: Link | None = None
    last: Link | None = None
    breaches: list[Breach] = field(default_factory=list)

    def take(self, link: Link) -> None:
        self.first, self.last = self.first or link, link
        self.breaches += self.verification.take(link)

    def __str__(self) -> str:
        chain = self.verification
        found = "intact" if not self.breaches else f"BROKEN in {len(self.breaches)} places"
        if self.first is None or self.last is None:
            stretch = "no links"
        else:
            stretch = f"links {self.first.sequence} to {self.last.sequence}, {self.first.at:%FT%TZ} to {self.last.at:%FT%TZ}"
        trimmed = f", {chain.anchor.sequence} older ones removed by age" if chain.anchor.sequence else ""
        dropped = f", {chain.dropped} records dropped for want of room" if chain.dropped else ""
        return f"replica {chain.replica}: {found}: {stretch}{trimmed}{dropped}; head {noted_form(chain.replica, chain.head)}"


def noted_form(replica: str, head: Head) -> str:
    """A head as people note it, and as `parse_noted` reads it."""
    return f"{replica}:{head.sequence}:{head.hash}"


def parse_noted(notes: Iterable[str]) -> Noted:
    """Raises InvalidError."""
    parsed: dict[str, dict[int, str]] = {}
    for note in notes:
        found = _NOTE.fullmatch(note.strip())
        if found is None:
            raise InvalidError(f'"{note}" is no link: write REPLICA:SEQUENCE:HASH, as this command shows heads')
        parsed.setdefault(found[1], {})[int(found[2])] = found[3]
    return parsed


async def verify_store(store: Store, noted: Noted) -> Sequence[Report]:
    """All chains of a database, which may be in use. Raises UnavailableError."""
    chains = await store.read(audit.chains)
    reports = []
    for replica, anchor in {**dict.fromkeys(noted, Head()), **chains}.items():
        report = Report(Verification(replica, anchor, noted.get(replica, {})))
        await _read(store, report)
        report.breaches += report.verification.end()
        reports.append(report)
    return reports


async def _read(store: Store, report: Report) -> None:
    chain = report.verification
    while True:
        links, anchor = await store.read(audit.stretch, chain.replica, chain.head.sequence, PAGE)
        if anchor.sequence > chain.head.sequence:  # trimmed meanwhile
            chain.anchor = chain.head = anchor
        if not links:
            return
        for link in links:
            report.take(link)


def verify_lines(lines: Iterable[bytes], noted: Noted) -> Sequence[Report]:
    """The chains in a file of records, each from wherever the file begins."""
    reports: dict[str, Report] = {}
    unreadable = Report(Verification("(unreadable lines)"))
    for number, line in enumerate(lines, 1):
        link = link_of(line)
        if link is None:
            unreadable.breaches.append(Breach("unknown", number, f"line {number} of the file is no record, or was changed"))
            continue
        if link.replica not in reports:
            reports[link.replica] = Report(Verification(link.replica, Head(), noted.get(link.replica, {}), part=True))
        reports[link.replica].take(link)
    for report in reports.values():
        report.breaches += report.verification.end()
    missing = [Report(Verification(replica, Head(), noted[replica], part=True)) for replica in noted if replica not in reports]
    for report in missing:
        report.breaches += report.verification.end()
    return [*reports.values(), *missing, *([unreadable] if unreadable.breaches else [])]


def breaches(reports: Iterable[Report]) -> Iterator[Breach]:
    for report in reports:
        yield from report.breaches
