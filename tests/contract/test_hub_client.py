"""What every HubClient promises: a hub in memory, the gRPC adapter against it, both adapters against the hub's own doors."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from machinery.clock import SystemClock
from machinery.conditions import AVAILABLE, TRUE, Condition
from machinery.errors import (
    AlreadyExistsError,
    ForbiddenError,
    InvalidError,
    MusterError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
)
from machinery.identity import AddOnName, HubId, agent_subject
from machinery.pki import build_request, generate_key, key_matches, unverified_claims
from spoke.domain.addon import AddOn, AddOnRegistration
from spoke.domain.addontoken import flaw
from spoke.domain.hubs import HubState, ListedHub
from spoke.domain.namespace import ManagedNamespace, NamespaceReport, applied
from spoke.domain.news import News
from spoke.domain.report import ClusterClaim, ClusterReport, ExternalEndpoint
from spoke.ports import AddOnToken, Capability, Desired, Greeting, HubClient, HubLostError, HubSession, Loss, StaleEpochError
from tests.fakes.hub_rigs import AGENT, CLUSTER, UID, Rig, rig_of
from tests.fakes.stage import until


@asynccontextmanager
async def joined(rig: Rig) -> AsyncIterator[HubClient]:
    """The agent's own client, once its cluster is known."""
    client = rig.client(await rig.agent())
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture(params=["memory", "grpc", "api"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig_of(request.param, tmp_path) as made:
        yield made


over_sessions = pytest.mark.parametrize("rig", ["memory", "grpc"], indirect=True)
"""For what the Kubernetes API has no word for."""


@pytest.fixture
async def client(rig: Rig) -> AsyncIterator[HubClient]:
    """The client of a bootstrap credential."""
    made = rig.client(await rig.bootstrap())
    yield made
    await made.close()


async def ensure(client: HubClient, uid: str = UID) -> bool:
    return (await client.ensure_cluster(CLUSTER, AGENT, uid, endpoints=(), annotations={})).created


async def submit(client: HubClient, request: bytes) -> str:
    return await client.submit_request(CLUSTER, AGENT, UID, request, duration=None)


async def first_desired(session: HubSession) -> Desired:
    async with aclosing(session.desired()) as following:
        return await anext(following)


async def test_the_hub_tells_its_id_and_time(rig: Rig, client: HubClient) -> None:
    info = await client.info()
    assert info.hub_id == rig.hub_id
    assert abs(info.time - SystemClock().now()) < timedelta(seconds=5)
    assert info.trust_bundle == rig.trust


async def test_a_cluster_is_created_once(client: HubClient) -> None:
    assert await ensure(client)
    assert not await ensure(client)


async def test_a_name_of_another_cluster_is_refused(client: HubClient) -> None:
    await ensure(client)
    with pytest.raises(AlreadyExistsError, match="another cluster"):
        await ensure(client, "other-uid")


async def test_the_same_request_gets_the_same_name(client: HubClient) -> None:
    await ensure(client)
    request = build_request(agent_subject(CLUSTER, AGENT), generate_key())
    assert await submit(client, request) == await submit(client, request)


async def test_an_unreadable_request_is_invalid(client: HubClient) -> None:
    await ensure(client)
    with pytest.raises(InvalidError, match="certificate signing request"):
        await submit(client, b"nonsense")


async def test_a_request_is_followed_from_pending_to_issued(rig: Rig, client: HubClient) -> None:
    await ensure(client)
    key = generate_key()
    name = await submit(client, build_request(agent_subject(CLUSTER, AGENT), key))
    states = []
    async with aclosing(client.follow_request(name)) as following:
        async for state in following:
            states.append(state)
            if state.state == "pending":
                await rig.approve(name)
    assert [state.state for state in states if state.state != "approved"] == ["pending", "issued"]
    assert key_matches(states[-1].certificate, key)
    assert key_matches(states[-1].recovery_certificate, key)
    assert states[-1].hub_time is not None


async def test_a_denial_is_told_with_its_message(rig: Rig, client: HubClient) -> None:
    await ensure(client)
    name = await submit(client, build_request(agent_subject(CLUSTER, AGENT), generate_key()))
    await rig.deny(name, "not ours")
    states = [state async for state in client.follow_request(name)]
    assert [(state.state, state.message) for state in states] == [("denied", "not ours")]


async def test_an_unknown_request_is_not_found(client: HubClient) -> None:
    with pytest.raises((NotFoundError, ForbiddenError)):  # a door may keep to itself which requests there are
        _ = [state async for state in client.follow_request("nothing")]


async def test_a_revoked_credential_is_unauthorized(rig: Rig) -> None:
    credential = await rig.bootstrap()
    await rig.revoke(credential)
    client = rig.client(credential)
    with pytest.raises(UnauthorizedError):
        await client.info()
    await client.close()


async def test_somebody_elses_request_is_forbidden(rig: Rig, client: HubClient) -> None:
    await ensure(client)
    name = await submit(client, build_request(agent_subject(CLUSTER, AGENT), generate_key()))
    stranger = rig.client(await rig.stranger())
    with pytest.raises((ForbiddenError, NotFoundError)):
        _ = [state async for state in stranger.follow_request(name)]
    await stranger.close()


@over_sessions
async def test_a_hub_that_is_away_is_unavailable(rig: Rig, client: HubClient) -> None:
    await rig.go_away()
    with pytest.raises(UnavailableError):
        await client.info()


async def test_a_session_begins_with_what_the_hub_wants_and_its_time(rig: Rig) -> None:
    async with joined(rig) as client, client.session(Greeting(UID)) as session:
        desired = await first_desired(session)
        assert desired.accepted
        assert desired.lease_duration == timedelta(seconds=60)
        assert session.beat_interval > timedelta()
        assert abs(session.hub_time_offset) < timedelta(seconds=5)


async def test_addons_are_told_with_their_registrations(rig: Rig) -> None:
    registration = AddOnRegistration("example.com/signer", "user", ("group",))
    async with joined(rig) as client, client.session(Greeting(UID)) as session:
        await rig.add_on("logs", registration, namespace="logging")
        async with asyncio.timeout(10), aclosing(session.desired()) as following:
            async for desired in following:
                if desired.addons:
                    break
        assert desired.addons == (AddOn(AddOnName("logs"), "logging", registrations=(registration,)),)


async def test_an_add_ons_driver_is_noted_and_its_token_issued_once_its_account_is_there(rig: Rig) -> None:
    logs = AddOnName("logs")
    async with joined(rig) as client, client.session(Greeting(UID)) as session:
        await rig.add_on(logs)
        with pytest.raises(MusterError):
            await client.addon_token(CLUSTER, logs, timedelta(hours=1))
        assert await session.report_addon(logs, (), driver="token") >= 1
        await rig.note(logs)
        async with asyncio.timeout(10), aclosing(session.desired()) as following:
            async for desired in following:
                if desired.addons and desired.addons[0].account_uid:
                    break
        assert [entry.driver for entry in desired.addons[0].registrations] == ["token"]
        issued = await _patiently(lambda: client.addon_token(CLUSTER, logs, timedelta(hours=1)))
    claims = unverified_claims(issued.token)
    assert claims is not None
    assert flaw(claims, desired.addons[0].account_uid, SystemClock().now()) == ""
    assert claims["exp"] == issued.expires_at.timestamp()


async def _patiently(ask: Callable[[], Awaitable[AddOnToken]]) -> AddOnToken:
    """What is answered once the right to it has come about."""
    async with asyncio.timeout(10):
        while True:
            try:
                return await ask()
            except ForbiddenError:
                await asyncio.sleep(0.02)


async def test_namespaces_of_sets_are_told_and_what_became_of_them_is_taken(rig: Rig) -> None:
    wanted = ManagedNamespace("blue", "team")
    report = ClusterReport(conditions=(), complete=False, namespaces=(NamespaceReport(wanted, applied("blue")),))
    async with joined(rig) as client, client.session(Greeting(UID)) as session:
        await rig.want_namespace("blue", "team")
        async with asyncio.timeout(10), aclosing(session.desired()) as following:
            async for desired in following:
                if desired.namespaces:
                    break
        assert desired.namespaces == (wanted,)
        assert await session.report(report) >= 1


async def test_news_are_taken_and_the_session_goes_on(rig: Rig) -> None:
    async with joined(rig) as client, client.session(Greeting(UID)) as session:
        await first_desired(session)
        await session.tell(News("CustomClusterClaimsTruncated", "some are left out", "Warning"))
        await session.beat(available=True)


async def test_a_new_session_supersedes_the_old_one_where_the_hub_knows_of_sessions(rig: Rig) -> None:
    async with joined(rig) as client, client.session(Greeting(UID)) as old, client.session(Greeting(UID)) as new:
        await new.beat(available=True)
        if Capability.ONE_SESSION not in client.capabilities:
            await old.beat(available=True)  # else the change to a renewed certificate would end in nothing
            return
        ended = await old.ended()
        assert isinstance(ended, HubLostError)
        assert ended.loss is Loss.SUPERSEDED


async def test_what_a_client_declares_is_what_it_does(rig: Rig) -> None:
    async with joined(rig) as client, client.session(Greeting(UID)) as session:
        assert bool((await client.info()).hub_id) is (Capability.HUB_ID in client.capabilities)
        await first_desired(session)
        drained = asyncio.ensure_future(session.drained())
        await session.beat(available=True)
        assert not drained.done()
        drained.cancel()


async def test_a_revoked_agent_gets_no_session(rig: Rig) -> None:
    credential = await rig.agent()
    await rig.revoke(credential)
    client = rig.client(credential)
    with pytest.raises(HubLostError) as revoked:
        async with client.session(Greeting(UID)):
            pass
    await client.close()
    assert revoked.value.loss in (Loss.REVOKED, Loss.UNAUTHENTICATED), "a real hub says why, a scripted one refuses"


async def test_a_session_of_another_cluster_under_this_name_is_refused(rig: Rig) -> None:
    async with joined(rig) as client:
        with pytest.raises(HubLostError) as refused:
            async with client.session(Greeting("another-uid")):
                pass
    assert refused.value.loss is Loss.REFUSED


async def test_what_the_hub_wants_is_told_again_when_it_changes(rig: Rig) -> None:
    async with joined(rig) as client, client.session(Greeting(UID)) as session, aclosing(session.desired()) as following:
        assert (await anext(following)).accepted
        await rig.accept(accepted=False)
        async with asyncio.timeout(10):
            try:
                while (await anext(following)).accepted:
                    pass  # whatever else there was to tell
            except HubLostError as lost:  # a hub may end the session of a cluster that is denied before we have read on
                assert "is denied" in str(lost)  # noqa: PT017 - told in either way


async def test_beats_are_acknowledged_and_reports_are_stored_and_get_a_revision(rig: Rig) -> None:
    report = ClusterReport(
        conditions=(Condition(AVAILABLE, TRUE, "r", "m"),),
        complete=True,
        capacity={"cpu": "4"},
        allocatable={"cpu": "3"},
        kubernetes_version="v1.34.2",
        claims=(ClusterClaim("a", "b"),),
        node_count=1,
        endpoints=(ExternalEndpoint("https://berlin", b"ca"),),
    )
    async with joined(rig) as client, client.session(Greeting(UID)) as session:
        await first_desired(session)
        for verdict in (True, False, None):
            await session.beat(available=verdict)
        assert await session.report(report) >= 1
        await rig.add_on("logs", AddOnRegistration("example.com/signer", "user"))
        assert await session.report_addon(AddOnName("logs"), (Condition("Available", TRUE, "r", "m"),)) >= 1
        assert await rig.reported() == {
            "capacity": "4",
            "allocatable": "3",
            "version": "v1.34.2",
            "claims": [("a", "b")],
            "endpoints": [("https://berlin", b"ca")],
            "logs": [("Available", TRUE)],
        }


async def test_a_refused_report_raises_the_hubs_reason_and_the_session_goes_on(rig: Rig) -> None:
    async with joined(rig) as client, client.session(Greeting(UID)) as session:
        await first_desired(session)
        await rig.refuse_addon_reports()
        with pytest.raises(NotFoundError):
            await session.report_addon(AddOnName("nothing"), (Condition("Available", TRUE, "r", "m"),))
        await session.beat(available=True)


@over_sessions
@pytest.mark.parametrize("loss", [Loss.UNREACHABLE, Loss.SUPERSEDED, Loss.UNAUTHENTICATED, Loss.REFUSED, Loss.FORGOTTEN])
async def test_the_end_of_a_session_is_told_with_its_reason(rig: Rig, loss: Loss) -> None:
    async with joined(rig) as client, client.session(Greeting(UID)) as session:
        await first_desired(session)
        await rig.end_session("that was it", loss)
        ended = await session.ended()
        assert isinstance(ended, HubLostError)
        assert (ended.loss, ended.message) == (loss, "that was it")
        with pytest.raises(HubLostError):
            await session.beat(available=True)
        with pytest.raises(HubLostError):
            await session.report(ClusterReport(conditions=(), complete=False))
        with pytest.raises(HubLostError):
            await first_desired(session)


@pytest.mark.parametrize("kind", ["memory", "grpc"])
async def test_a_beat_in_flight_ends_with_the_session(kind: str, tmp_path: Path) -> None:
    async with (
        rig_of(kind, tmp_path, flush_window=timedelta(minutes=1)) as rig,
        joined(rig) as client,
        client.session(Greeting(UID)) as session,
    ):
        await session.beat(available=True)  # the first is stored at once
        rig.hold_beats()
        beat = asyncio.create_task(session.beat(available=True))
        await until(rig.is_holding_beats)
        await rig.end_session("that was it", Loss.SUPERSEDED)
        with pytest.raises(HubLostError):
            await beat


@over_sessions
@pytest.mark.parametrize("target", [None, HubId("11111111-0000-4000-8000-000000000000")])
async def test_a_drain_notice_may_name_another_hub_and_leaves_the_session_working(rig: Rig, target: HubId | None) -> None:
    listed = (ListedHub(target, "there", "https://there", HubState.READY),) if target else ()
    async with joined(rig) as client, client.session(Greeting(UID, 1, listed)) as session:
        await first_desired(session)
        await session.report(ClusterReport(conditions=(), complete=False))
        await rig.drain(target)
        assert (await session.drained()).target == target
        await session.beat(available=True)


@over_sessions
async def test_a_closed_session_says_goodbye_to_the_hub(rig: Rig) -> None:
    async with joined(rig) as client:
        async with client.session(Greeting(UID)) as session:
            await first_desired(session)
        await until(lambda: not rig.sessions())


@over_sessions
async def test_the_hubs_of_the_list_are_told_at_the_beginning_and_later(rig: Rig) -> None:
    listed = tuple(ListedHub(HubId(f"hub-{state.value}"), state.value, "https://there", state) for state in HubState)
    told = [(each.hub_id, each.name, each.state.name) for each in listed]
    one_word = [(hub_id, name, "LOST" if state == "REVOKED" else state) for hub_id, name, state in told]
    async with joined(rig) as client, client.session(Greeting(UID, 7, listed)) as session:
        await session.report(ClusterReport(conditions=(), complete=False))
        assert await rig.hubs() in (told, one_word), "the wire has one word for LOST and REVOKED"
        await session.tell_hubs(listed[:1])
        async with asyncio.timeout(10):
            while await rig.hubs() != told[:1]:
                await session.report(ClusterReport(conditions=(), complete=False))


@over_sessions
async def test_standing_by_ends_the_session_of_an_older_epoch_and_tells_what_the_hub_knows(rig: Rig) -> None:
    other = HubId("11111111-0000-4000-8000-000000000000")
    async with joined(rig) as client, client.session(Greeting(UID, 7)) as session:
        await session.beat(available=True)
        answer = await client.stand_by(CLUSTER, AGENT, UID, owner=other, epoch=8)
        assert (answer.accepted, answer.epoch, answer.again_after) == (True, 8, rig.again_after)
        assert answer.trust_bundle == rig.trust
        with pytest.raises(HubLostError):
            async with asyncio.timeout(10):
                while True:
                    await session.beat(available=True)
        ended = await session.ended()
        assert isinstance(ended, StaleEpochError)
        assert (ended.epoch, ended.loss) == (8, Loss.STALE)
        assert (await client.stand_by(CLUSTER, AGENT, UID, owner=None, epoch=3)).epoch == 8
        assert await rig.owner() == (other, 8)


@over_sessions
async def test_who_leaves_is_known_no_more_and_may_say_it_twice(rig: Rig) -> None:
    async with joined(rig) as client, client.session(Greeting(UID)) as session:
        assert await client.leave(CLUSTER, AGENT, UID)
        await session.ended()
        assert not await client.leave(CLUSTER, AGENT, UID)


async def test_a_hub_that_keeps_epochs_takes_none_that_is_older(rig: Rig) -> None:
    async with joined(rig) as client:
        if Capability.SEVERAL_HUBS not in client.capabilities:
            pytest.skip("the Kubernetes API has no word for epochs")
        async with client.session(Greeting(UID, 7)) as session:
            await session.beat(available=True)
        with pytest.raises(StaleEpochError) as stale:
            async with client.session(Greeting(UID, 6)):
                pass
        assert (stale.value.loss, stale.value.epoch) == (Loss.STALE, 7)
        other = HubId("11111111-0000-4000-8000-000000000000")
        async with client.session(Greeting(UID, 8)) as session:
            await first_desired(session)
            answer = await client.stand_by(CLUSTER, AGENT, UID, owner=other, epoch=9)
            assert (answer.accepted, answer.epoch) == (True, 9)
            with pytest.raises(HubLostError):
                async with asyncio.timeout(10):
                    while True:
                        await session.beat(available=True)
        with pytest.raises(StaleEpochError):
            async with client.session(Greeting(UID, 8)):
                pass
        assert (await client.stand_by(CLUSTER, AGENT, UID, owner=None, epoch=1)).epoch == 9


async def test_last_words_are_heard_and_end_the_session_soon(rig: Rig) -> None:
    other = HubId("11111111-0000-4000-8000-000000000000")
    async with joined(rig) as client, client.session(Greeting(UID, 7)) as session:
        await first_desired(session)
        await session.farewell(other, 8)
        with pytest.raises(HubLostError):
            await session.beat(available=True)
        if Capability.SEVERAL_HUBS in client.capabilities:
            with pytest.raises(StaleEpochError):
                async with client.session(Greeting(UID, 7)):
                    pass
            assert await rig.owner() == (other, 8)
