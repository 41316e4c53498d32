"""What every store promises about the audit log: chains that only grow at their end, and are trimmed from their beginning."""

from datetime import timedelta

import pytest

from hub.domain.chain import AuditQuery, Head, Link, Place
from hub.ports import Store
from hub.services import audit
from machinery.clock import ManualClock
from machinery.errors import AlreadyExistsError
from tests.fakes.audit_records import chain, record

SECOND = timedelta(seconds=1)


async def test_links_come_back_as_they_were(store: Store, clock: ManualClock) -> None:
    links = chain("a", *(record(at=clock.now() + number * SECOND) for number in range(5)))
    await store.run(audit.append, links[:3])
    await store.run(audit.append, links[3:])
    await store.run(audit.append, chain("b", record(at=clock.now())))
    assert await store.read(lambda tx: list(tx.audit.links("a", after=0, limit=10))) == links
    assert await store.read(lambda tx: list(tx.audit.links("a", after=2, limit=2))) == links[2:4]
    assert await store.read(audit.head, "a") == links[-1].head
    assert await store.read(audit.head, "nobody") == Head()
    assert await store.read(audit.chains) == {"a": Head(), "b": Head()}


async def test_links_whose_storing_was_not_acknowledged_can_be_sent_again(store: Store, clock: ManualClock) -> None:
    links = chain("a", record(at=clock.now()), record(at=clock.now()))
    await store.run(audit.append, links)
    await store.run(audit.append, links)
    assert await store.read(lambda tx: list(tx.audit.links("a", after=0, limit=10))) == links


async def test_text_that_no_database_takes_is_kept_with_marks_in_its_place(store: Store, clock: ManualClock) -> None:
    strange = chain("a", record(at=clock.now(), user="a\x00\udcff", name="\x00", namespace="\x00", verb="\x00"))
    await store.run(audit.append, strange)
    found, _ = await store.read(audit.find, AuditQuery(equal=(("user", "a\ufffd\ufffd"), ("name", "\ufffd"))))
    assert list(found) == strange


async def test_two_writers_of_one_chain_never_mix(store: Store, clock: ManualClock) -> None:
    await store.run(audit.append, chain("a", record(at=clock.now())))
    with pytest.raises(AlreadyExistsError):
        await store.run(audit.append, chain("a", record(at=clock.now(), user="bob")))
    with pytest.raises(AlreadyExistsError):
        await store.run(audit.append, chain("a", record(at=clock.now()), record(at=clock.now())))


async def test_records_are_found_by_what_they_say_in_the_order_of_time(store: Store, clock: ManualClock) -> None:
    now = clock.now()
    mine = chain("b", record(at=now), record(at=now + 2 * SECOND, verb="delete", namespace="ns"), record(at=now + 3 * SECOND))
    others = chain("a", record(at=now + SECOND, user="bob"), record(at=now + 2 * SECOND, resource="leases", name="x"))
    await store.run(audit.append, mine)
    await store.run(audit.append, others)

    async def found(**query: object) -> list[Link]:
        links, _ = await store.read(audit.find, AuditQuery(**query))  # type: ignore[arg-type]
        return list(links)

    assert await found() == [mine[0], others[0], others[1], mine[1], mine[2]]
    assert await found(equal=(("user", "bob"),)) == [others[0]]
    assert await found(unequal=(("user", "ann"),)) == [others[0]]
    assert await found(equal=(("verb", "delete"), ("namespace", "ns"))) == [mine[1]]
    assert await found(equal=(("resource", "leases"), ("name", "x"))) == [others[1]]
    assert await found(since=now + 2 * SECOND, until=now + 2 * SECOND) == [others[1], mine[1]]
    assert await found(limit=2) == [mine[0], others[0], others[1]]
    assert await found(after=Place(others[1].at, "a", 2)) == [mine[1], mine[2]]


async def test_trimming_takes_the_beginning_and_keeps_its_end(store: Store, clock: ManualClock) -> None:
    now = clock.now()
    links = chain("a", *(record(at=now + number * SECOND) for number in (0, 1, 9, 2, 10)))
    await store.run(audit.append, links)
    clock.advance(timedelta(days=1) + 5 * SECOND)
    assert await store.run(audit.trim, timedelta(days=1)) == 2
    assert await store.read(lambda tx: list(tx.audit.links("a", after=0, limit=10))) == links[2:]
    assert await store.read(audit.chains) == {"a": links[1].head}
    clock.advance(timedelta(days=1))
    assert await store.run(audit.trim, timedelta(days=1)) == 3
    assert await store.run(audit.trim, timedelta(days=1)) == 0
    assert await store.read(audit.head, "a") == links[-1].head
    assert await store.read(audit.chains) == {"a": links[-1].head}


async def test_trimming_goes_in_parts(store: Store, clock: ManualClock) -> None:
    links = chain("a", *(record(at=clock.now()) for _ in range(5)))
    await store.run(audit.append, links)
    clock.advance(timedelta(days=1))
    assert await store.run(lambda tx: tx.audit.trim(tx.now, tx.now, 3)) == 3
    assert await store.read(audit.chains) == {"a": links[2].head}
    assert await store.run(lambda tx: tx.audit.trim(tx.now, tx.now, 3)) == 2


async def test_a_link_of_a_clock_that_was_ahead_is_as_old_as_the_one_after_it(store: Store, clock: ManualClock) -> None:
    now = clock.now()
    times = (now, now + timedelta(days=400), now + timedelta(days=401), now + SECOND, now + timedelta(days=402))
    links = chain("a", *(record(at=at) for at in times))
    await store.run(audit.append, links)
    clock.advance(timedelta(hours=1))
    trimmed = [await store.run(lambda tx: tx.audit.trim(now + 2 * SECOND, tx.now, 2)) for _ in range(4)]
    assert trimmed == [2, 2, 0, 0], "the last one was written just now, as far as anybody knows"
    assert await store.read(audit.chains) == {"a": links[3].head}
