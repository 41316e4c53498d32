"""Floods of refusals and of repeated requests become a bounded number of audit records, and displace none of other callers."""

from datetime import timedelta

import msgspec

from hub.audit import Auditor, default_policy
from hub.audit.floods import BURST, LONGEST_TEXT, MOST, REPEATED
from hub.audit.trail import Trail
from hub.domain.audit import LOGIN_FAILURE, Record, ResponseStatus, User, read_record
from machinery.apiserver.access import ANONYMOUS
from machinery.clock import ManualClock
from machinery.product import GROUP_SUFFIX
from machinery.tasks import GuardedTasks
from tests.fakes.audit_records import MemorySink, record

PER_MINUTE = 2 * MOST + 1


def refused(number: int, address: str, *, user: str = ANONYMOUS.user, code: int = 401) -> Record:
    status = ResponseStatus(code, "Refused")
    return msgspec.structs.replace(
        record(number), user=User(user), source_ips=(address,), response_status=status, user_agent="x" * 9_000
    )


async def kept(*offered: Record) -> tuple[list[Record], list[Record]]:
    """What is kept of the records of known callers, and of strangers."""
    sinks = MemorySink(), MemorySink()
    clock = ManualClock()
    known, strangers = (Trail(sink, clock, window=timedelta()) for sink in sinks)
    auditor = Auditor(default_policy(GROUP_SUFFIX), [known], clock, strangers=[strangers])
    async with GuardedTasks("test") as tasks:
        tasks.start("audit", auditor.run())
        for each in offered:
            auditor.offer(each)
        await auditor.finish()
    first, second = ([found for entry in sink.entries if (found := read_record(entry.document))] for sink in sinks)
    return first, second


def repeated(records: list[Record]) -> list[int]:
    return [int(each.annotations[REPEATED]) for each in records if REPEATED in each.annotations]


async def test_refusals_of_strangers_are_counted_per_address_and_reason_and_kept_apart() -> None:
    login = msgspec.structs.replace(refused(0, "10.0.0.1", code=201), annotations={LOGIN_FAILURE: "expired"})
    flood = [refused(number, "10.0.0.1", code=429 if number % 2 else 401) for number in range(1_000)]
    flood += [refused(number, f"2001:db8:0:1::{number:x}") for number in range(1_000)]
    known, strangers = await kept(*flood, login, login, record(1))
    assert known == [record(1)]
    assert len(strangers) == 8
    assert repeated(strangers) == [499, 499, 999, 1]
    assert max(len(each.user_agent) for each in strangers) == LONGEST_TEXT


async def test_any_number_of_strange_addresses_makes_a_bounded_number_of_records() -> None:
    _, strangers = await kept(*(refused(number, f"10.0.{number // 250}.{number % 250}") for number in range(5_000)))
    assert len(strangers) == MOST + 1 <= PER_MINUTE
    assert repeated(strangers) == [5_000 - MOST]


async def test_one_caller_above_its_rate_is_counted_and_no_other_caller() -> None:
    flood = [refused(number, "10.0.0.1", user="mallory", code=403) for number in range(BURST + 1_000)]
    ann = [record(number) for number in range(BURST)]
    known, strangers = await kept(*flood, *ann)
    assert strangers == []
    assert [each for each in known if each.user == User("ann")] == ann
    assert len(known) == 2 * BURST + 2
    assert repeated(known) == [999]
