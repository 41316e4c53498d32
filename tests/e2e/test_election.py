"""Several replicas, one of which leads: processes on PostgreSQL that are stopped, killed, frozen and cut off."""

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from random import Random

import pytest

from hollow.cluster import HollowCluster
from machinery.client.leaselock import LEASES
from machinery.client.rest import KubeClient
from tests.e2e.processes import Bench, asked_for_debug, until
from tests.e2e.replicas import Election, Replica, replicas_of
from tests.fakes.postgres import postgres_path
from tests.trials import soak_only

pytestmark = pytest.mark.postgres


@pytest.fixture
async def election(bench: Bench, postgres_url: str) -> AsyncIterator[Election]:
    async with replicas_of(bench, postgres_url) as replicas:
        yield Election(replicas)


def reasons_of(replica: Replica, event: str) -> list[str]:
    """Why, for each time that this replica logged an event of the election."""
    return [str(line["because"]) for line in replica.process.lines if line["event"] == event]


async def gained(replica: Replica, because: str) -> None:
    """Returns when the replica says that it leads, and why: the database has known it for a moment by then."""
    await until(
        lambda: any(why.startswith(because) for why in reasons_of(replica, "leadership gained")[-1:]),
        what=f"{replica.name} says that it leads because {because}",
    )


def others(election: Election, *without: Replica) -> list[Replica]:
    return [replica for replica in election.replicas.all if replica not in without]


async def test_one_replica_writes_for_all_and_another_follows_however_it_ends(election: Election) -> None:
    await election.start(3)
    first, (_, term) = await election.leader(), await election.holder()
    for number, replica in enumerate(election.replicas.all):
        await election.accept(f"at-{number}", replica)
    await election.answered("at-0", "at-1", "at-2", at=first)
    assert {writer for _, writer in await election.writers()} == {first.name}

    # SIGTERM: released, and followed immediately
    first.process.send(signal.SIGTERM)
    second = await election.followed(term)
    assert (await first.process.ended(), reasons_of(first, "leadership lost")[-1]) == (0, "the process stops")
    await gained(second, "it was released")

    # killed: followed when its lease is over
    await election.replicas.restart(first)
    _, term = await election.holder()
    await second.process.kill()
    third = await election.followed(term)
    await gained(third, f"{second.name} did not renew it")

    # stopped and continued: it finds out by itself, writes nothing, and follows
    await election.replicas.restart(second)
    _, term = await election.holder()
    third.process.send(signal.SIGSTOP)
    await election.accept("while-frozen", others(election, third)[0])
    fourth = await election.followed(term)
    await election.answered("while-frozen", at=fourth)
    third.process.send(signal.SIGCONT)
    await until(
        lambda: len(reasons_of(third, "leadership lost")) == len(reasons_of(third, "leadership gained")),
        what="the frozen leader knows",
    )
    await election.accept("afterwards", third)
    await election.answered("afterwards", at=third)
    assert third.process.running
    assert await others(election, fourth)[0].process.stop() == 0
    assert await election.leader() is fourth, "the end of a follower changes nothing"
    await election.check()


async def test_leader_cut_off_from_the_database_leads_no_more_and_is_not_restarted(election: Election) -> None:
    async with AsyncExitStack() as stack:
        way, url = await stack.enter_async_context(postgres_path(election.replicas.database))
        election.ways["hub-0"] = url
        debug = election.replicas.bench.folder / "debug"
        await election.start(1, f"--debug-socket={debug}")
        cut = election.replicas[0]
        await election.run("DROP TABLE noted_terms, noted_writes; DROP FUNCTION note_leader, note_write CASCADE")
        await election.start(1)
        _, term = await election.holder()
        pid = cut.process.pid

        way.silence()

        async def stood_down() -> bool:
            return "leads: False" in await asked_for_debug(debug)

        await until(stood_down, what="the flag has fallen")
        follower = await election.followed(term)
        taken = {row.term: row.taken for row in await election.ask("SELECT term, taken FROM noted_terms")}
        lost = [line["time"] for line in cut.process.lines if line["event"] == "leadership lost"]
        assert datetime.fromisoformat(lost[-1]) < taken[term + 1], "before another leads"
        assert await cut.probed("/livez") == 200
        way.resume()
        await election.replicas.ready(cut)
        await follower.process.stop()
        assert await election.followed(term + 1) is cut
        assert cut.process.pid == pid
        assert "the lock could not be renewed in time" in reasons_of(cut, "leadership lost")
        await gained(cut, "it was released")
        await election.check()


async def _is_shown(replica: Replica, term: int) -> bool:
    """Whether operators see in an Event that it came to lead."""
    async with await replica.client() as client:
        events = await client.list("/api/v1/events")
    messages = [str(each["message"]) for each in events if each["reason"] == "LeaderElection"]
    return any(message.startswith(f"{replica.name} became leader in term {term}: ") for message in messages)


async def test_hubs_that_compete_for_a_lease_of_kubernetes_follow_each_other_with_their_terms_in_the_database(
    election: Election, hollow_cluster: HollowCluster, tmp_path: Path
) -> None:
    file = tmp_path / "management.kubeconfig"
    file.write_text(json.dumps(hollow_cluster.kubeconfig()))
    place = ("--leader-elect-resource-namespace=default", "--leader-elect-resource-name=muster-hub")
    await election.start(2, "--leader-elect-resource-lock=kubernetes", f"--management-cluster={file}", *place)
    first, (_, term) = await election.leader(), await election.holder()
    async with await KubeClient.from_document(hollow_cluster.kubeconfig()) as client:

        async def holder() -> str:
            return str((await client.get(LEASES.path("muster-hub", namespace="default")))["spec"].get("holderIdentity", ""))

        assert await holder() == first.name
        await election.accept("before", first)
        await election.answered("before", at=first)
        await first.process.kill()
        second = await election.followed(term)
        assert await holder() == second.name
        await gained(second, f"{first.name} did not renew it")
        await election.accept("after", second)
        await election.answered("after", at=second)
        await until(partial(_is_shown, second, term + 1), what="an Event names the leader")
        await second.process.stop()
        assert (await holder(), (await election.holder())[0]) == ("", "")
    await election.check()
    assert {writer for _, writer in await election.writers()} == {first.name, second.name}


REPLICAS, RANDOM_SECONDS, TERMS = 5, 600, 50  # at least so many; who is slow takes longer


@soak_only(RANDOM_SECONDS)
@pytest.mark.timeout(2 * RANDOM_SECONDS + 120)
async def test_terms_never_interleave_under_random_signals(election: Election) -> None:
    random = Random(TERMS)
    await election.start(REPLICAS)
    usable, down = list(election.replicas.all), dict[str, signal.Signals]()
    loop = asyncio.get_running_loop()
    end = loop.time() + RANDOM_SECONDS
    async with election.worked(usable) as accepted:
        while loop.time() < end or (await election.holder())[1] < TERMS:
            await asyncio.sleep(random.uniform(0.1, 1.0))
            if down and (len(down) > REPLICAS // 2 or random.random() < 0.4):
                name, number = down.popitem()
                await _up(election, named(election, name), number)
            else:
                replica = await election.leader() if random.random() < 0.7 else random.choice(usable)
                if replica in usable:
                    usable.remove(replica)
                    down[replica.name] = random.choice((signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM))
                    replica.process.send(down[replica.name])
            usable[:] = [replica for replica in election.replicas.all if replica.name not in down]
        for name, number in down.items():
            await _up(election, named(election, name), number)
        usable[:] = election.replicas.all
    await election.answered(*accepted, at=await election.leader())
    await election.check()
    await every_term_is_recorded(election)


async def every_term_is_recorded(election: Election) -> None:
    """By one Event, also where its leader was killed before it could."""

    async def recorded_once() -> bool:
        terms = sorted(row.term for row in await election.ask("SELECT term FROM noted_terms"))
        async with await (await election.leader()).client() as client:
            events = await client.list("/api/v1/events")
        text = [
            re.search(r"became leader in term (\d+)", each["message"]) for each in events if each["reason"] == "LeaderElection"
        ]
        return [term for term in sorted(int(each[1]) for each in text if each) if term >= terms[0]] == terms

    await until(recorded_once, what="each term has one Event")


def named(election: Election, name: str) -> Replica:
    return next(replica for replica in election.replicas.all if replica.name == name)


async def _up(election: Election, replica: Replica, was: signal.Signals) -> None:
    """Serves again, after any earlier fault."""
    if was is signal.SIGSTOP:
        replica.process.send(signal.SIGCONT)
        await election.replicas.ready(replica)
    else:
        await replica.process.ended()
        await election.replicas.restart(replica)
