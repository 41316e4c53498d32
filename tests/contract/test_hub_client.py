"""What every HubClient promises: a hub in memory, the gRPC adapter against it, both adapters against the hub's own doors."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest

from machinery import errors
from machinery.errors import ForbiddenError, InvalidError, MusterError, NotFoundError, UnavailableError
from machinery.identity import AddOnName, HubId, agent_subject
from machinery.meta.conditions import AVAILABLE, TRUE, Condition
from machinery.pki import build_request, generate_key, key_matches, unverified_claims
from machinery.runtime.clock import SystemClock
from spoke.domain import report as reports
from spoke.domain.addon import AddOn, AddOnRegistration, token_due
from spoke.domain.hubs import HubAcceptance, HubState, ListedHub
from spoke.domain.names import AgentIdentity, AgentNames
from spoke.domain.next_step import SessionLoss
from spoke.domain.report import ClusterReport, ManagedNamespace, NamespaceReport, ReportedClaim, namespace_applied_condition
from spoke.ports import hub as port
from spoke.ports.hub import Desired, HubClient, HubLostError, HubSession, SessionHello, TransportFeature
from tests.checks import check_refusal_of, present
from tests.fakes.hub_rigs import AGENT, CLUSTER, IDENTITY, UID, Rig, rig_of
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


over_sessions = pytest.mark.parametrize("rig", ["memory", "grpc"], indirect=True)  # for what the Kubernetes API has no word for


@pytest.fixture
async def client(rig: Rig) -> AsyncIterator[HubClient]:
    """The client of a bootstrap credential."""
    made = rig.client(await rig.bootstrap())
    yield made
    await made.close()


async def desired_when(session: HubSession, holds: Callable[[Desired], object]) -> Desired:
    async with asyncio.timeout(10), aclosing(session.desired()) as following:
        async for desired in following:
            if holds(desired):
                return desired
    raise AssertionError


async def ensure(client: HubClient, uid: str = UID) -> bool:
    return (await client.ensure_cluster(AgentIdentity(AgentNames(CLUSTER, AGENT), uid), endpoints=(), annotations={})).created


async def submit(client: HubClient, request: bytes) -> str:
    return await client.submit_request(IDENTITY, request, duration=None)


def fresh_request(key: bytes | None = None) -> bytes:
    return build_request(agent_subject(CLUSTER, AGENT), key or generate_key())


async def test_cluster_is_created_once_and_its_requests_are_followed_by_their_owner_alone(rig: Rig, client: HubClient) -> None:
    info = await client.info()
    assert (info.hub_id, info.trust_bundle) == (rig.hub_id, rig.trust)
    assert abs(info.time - SystemClock().now()) < timedelta(seconds=5)
    assert [await ensure(client), await ensure(client)] == [True, False]
    await check_refusal_of(errors.AlreadyExistsError, ensure(client, "other-uid"), match="another cluster")
    await check_refusal_of(InvalidError, submit(client, b"nonsense"), match="certificate signing request")
    key = generate_key()
    request = fresh_request(key)
    name = await submit(client, request)
    assert await submit(client, request) == name, "the same bytes are the same request"
    stranger = rig.client(await rig.stranger())
    for asker, what in ((client, "nothing"), (stranger, name)):
        with pytest.raises((NotFoundError, ForbiddenError)):  # a door may keep to itself which requests there are
            _ = [state async for state in asker.follow_request(what)]
    await stranger.close()
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
    name = await submit(client, fresh_request())
    await rig.deny(name, "not ours")
    states = [state async for state in client.follow_request(name)]
    assert [(state.state, state.message) for state in states] == [("denied", "not ours")]


async def test_revoked_credential_opens_nothing_and_a_hub_that_is_away_is_unavailable(rig: Rig) -> None:
    credential, agent = await rig.bootstrap(), await rig.agent()
    for each in (credential, agent):
        await rig.revoke(each)
    newcomer, client = rig.client(credential), rig.client(agent)
    await check_refusal_of(errors.UnauthorizedError, newcomer.info())
    with pytest.raises(HubLostError) as revoked:
        async with client.session(SessionHello(UID)):
            pass
    assert revoked.value.loss in (SessionLoss.REVOKED, SessionLoss.UNAUTHENTICATED), "real hubs say why, a scripted one refuses"
    await client.close()
    if TransportFeature.ONE_SESSION in client.features:
        await rig.go_away()
        await check_refusal_of(UnavailableError, newcomer.info())
    await newcomer.close()


async def test_session_reports_what_the_hub_wants_and_stores_what_the_agent_says(rig: Rig) -> None:
    report = ClusterReport(
        conditions=(Condition(AVAILABLE, TRUE, "r", "m"),),
        complete=True,
        capacity={"cpu": "4"},
        allocatable={"cpu": "3"},
        kubernetes_version="v1.34.2",
        claims=(ReportedClaim("a", "b"),),
        node_count=1,
        endpoints=(reports.ExternalEndpoint("https://berlin", b"ca"),),
    )
    good = (Condition("Available", TRUE, "r", "m"),)
    registration = AddOnRegistration("example.com/signer", "user", ("group",))
    async with joined(rig) as client, client.session(SessionHello(UID)) as session:
        desired = await desired_when(session, lambda _: True)
        assert (desired.accepted, desired.lease_duration) == (True, timedelta(seconds=60))
        assert session.beat_interval > timedelta()
        assert abs(session.hub_time_offset) < timedelta(seconds=5)
        assert bool((await client.info()).hub_id) is (TransportFeature.HUB_ID in client.features)
        for verdict in (True, False, None):
            await session.beat(available=verdict)
        await session.send_event(reports.AgentEvent("CustomClusterClaimsTruncated", "some are left out", "Warning"))
        assert await session.report(report) >= 1
        await rig.add_on("logs", registration, namespace="logging")
        desired = await desired_when(session, lambda one: one.addons)
        assert desired.addons == (AddOn(AddOnName("logs"), "logging", registrations=(registration,)),)
        assert await session.report_addon(AddOnName("logs"), good) >= 1
        assert await rig.reported() == {
            "capacity": "4",
            "allocatable": "3",
            "version": "v1.34.2",
            "claims": [("a", "b")],
            "endpoints": [("https://berlin", b"ca")],
            "logs": [("Available", TRUE)],
        }
        wanted = ManagedNamespace("blue", "team")
        await rig.want_namespace("blue", "team")
        assert (await desired_when(session, lambda one: one.namespaces)).namespaces == (wanted,)
        applied_there = (NamespaceReport(wanted, namespace_applied_condition("blue")),)
        assert await session.report(ClusterReport(conditions=(), complete=False, namespaces=applied_there)) >= 1
        await rig.refuse_addon_reports()
        await check_refusal_of(NotFoundError, session.report_addon(AddOnName("nothing"), good))
        await session.beat(available=True)


async def test_an_add_ons_driver_is_noted_and_its_token_issued_once_its_account_is_there(rig: Rig) -> None:
    logs = AddOnName("logs")
    async with joined(rig) as client, client.session(SessionHello(UID)) as session:
        await rig.add_on(logs)
        await check_refusal_of(MusterError, client.addon_token(CLUSTER, logs, timedelta(hours=1)))
        assert await session.report_addon(logs, (), driver="token") >= 1
        await rig.note(logs)
        (addon,) = (await desired_when(session, lambda one: one.addons and one.addons[0].account_uid)).addons or ()
        assert [entry.driver for entry in addon.registrations] == ["token"]
        async with asyncio.timeout(10):
            while True:
                with suppress(ForbiddenError):  # the right to it comes about a moment later
                    issued = await client.addon_token(CLUSTER, logs, timedelta(hours=1))
                    break
                await asyncio.sleep(0.02)
    claims = present(unverified_claims(issued.token))
    due = token_due(claims, addon.account_uid)
    assert due is not None
    assert SystemClock().now() < due
    assert claims["exp"] == issued.expires_at.timestamp()


async def test_a_new_session_supersedes_the_old_and_one_of_another_cluster_or_a_denied_one_is_refused(rig: Rig) -> None:
    async with joined(rig) as client:
        with pytest.raises(HubLostError) as refused:
            async with client.session(SessionHello("another-uid")):
                pass
        assert refused.value.loss is SessionLoss.REFUSED
        async with client.session(SessionHello(UID)) as old, client.session(SessionHello(UID)) as new:
            await new.beat(available=True)
            if TransportFeature.ONE_SESSION not in client.features:
                await old.beat(available=True)  # else the change to a renewed certificate would end in nothing
            else:
                ended = await old.ended()
                assert isinstance(ended, HubLostError)
                assert ended.loss is SessionLoss.SUPERSEDED
            drained = asyncio.ensure_future(new.drained())
            await new.beat(available=True)
            assert not drained.done()
            drained.cancel()
            async with asyncio.timeout(10), aclosing(new.desired()) as following:
                assert (await anext(following)).accepted
                await rig.accept(accepted=False)
                try:
                    while (await anext(following)).accepted:
                        pass  # whatever else there was to tell
                except HubLostError as lost:  # a hub may end the session of a cluster that is denied before we have read on
                    assert "is denied" in str(lost)  # noqa: PT017 - reported in either way


@over_sessions
async def test_the_end_of_a_session_is_reported_with_its_reason(rig: Rig) -> None:
    async with joined(rig) as client:
        for loss in (
            *(SessionLoss.UNREACHABLE, SessionLoss.SUPERSEDED, SessionLoss.UNAUTHENTICATED, SessionLoss.REFUSED),
            SessionLoss.FORGOTTEN,
        ):
            async with client.session(SessionHello(UID)) as session:
                await session.beat(available=True)
                await rig.end_session("that was it", loss)
                ended = await session.ended()
                assert isinstance(ended, HubLostError)
                assert (ended.loss, ended.message) == (loss, "that was it")
                asked: list[Awaitable[object]] = [
                    session.beat(available=True),
                    session.report(ClusterReport(conditions=(), complete=False)),
                    desired_when(session, lambda _: True),
                ]
                for each in asked:
                    await check_refusal_of(HubLostError, each)


@pytest.mark.parametrize("kind", ["memory", "grpc"])
async def test_a_beat_in_flight_ends_with_the_session(kind: str, tmp_path: Path) -> None:
    async with (
        rig_of(kind, tmp_path, flush_window=timedelta(minutes=1)) as rig,
        joined(rig) as client,
        client.session(SessionHello(UID)) as session,
    ):
        await session.beat(available=True)  # the first is stored at once
        rig.hold_beats()
        beat = asyncio.create_task(session.beat(available=True))
        await until(rig.is_holding_beats)
        await rig.end_session("that was it", SessionLoss.SUPERSEDED)
        await check_refusal_of(HubLostError, beat)


@over_sessions
async def test_drain_notice_may_name_another_hub_of_the_list_and_leaves_the_session_working(rig: Rig) -> None:
    listed = tuple(ListedHub(HubId(f"hub-{state.value}"), state.value, "https://there", state) for state in HubState)
    entries = [(each.hub_id, each.name, each.state.name) for each in listed]
    one_word = [(hub_id, name, "LOST" if state == "REVOKED" else state) for hub_id, name, state in entries]
    target = next(each.hub_id for each in listed if each.state is HubState.READY)
    async with joined(rig) as client:
        async with client.session(SessionHello(UID, 7, listed)) as session:
            await session.report(ClusterReport(conditions=(), complete=False))
            assert await rig.hubs() in (entries, one_word), "the wire has one word for LOST and REVOKED"
            await rig.drain(target)
            assert (await session.drained()).target == target
            await session.beat(available=True)
            await session.report_hub_list(listed[:1])
            async with asyncio.timeout(10):
                while await rig.hubs() != entries[:1]:
                    await session.report(ClusterReport(conditions=(), complete=False))
        await until(lambda: not rig.sessions())
        async with client.session(SessionHello(UID, 8)) as session:
            await session.beat(available=True)
            await rig.drain(None)
            assert (await session.drained()).target is None
            for _ in range(10):
                written = asyncio.create_task(session.report_hub_list(listed))
                await asyncio.sleep(0)
                written.cancel()  # in the middle of a write, as when a newer bundle of CAs comes: the session goes on
            await session.beat(available=True)


async def outdated(client: HubClient, epoch: int) -> int:
    """The epoch that the hub knows when it refuses a session of this one."""
    with pytest.raises(port.SessionEpochError) as stale:
        async with client.session(SessionHello(UID, epoch)):
            pass
    assert stale.value.loss is SessionLoss.STALE
    return stale.value.epoch


async def test_acceptance_of_the_cluster_is_reported_to_its_agent(rig: Rig) -> None:
    async with joined(rig) as client:
        assert await client.acceptance(CLUSTER) is HubAcceptance.ACCEPTED
        await rig.accept(accepted=False)
        assert await client.acceptance(CLUSTER) is HubAcceptance.DENIED


async def is_ended(session: HubSession) -> None:
    with pytest.raises(HubLostError):
        async with asyncio.timeout(10):
            while True:
                await session.beat(available=True)


@over_sessions
async def test_standing_by_and_last_words_end_sessions_of_older_epochs_and_a_cluster_leaves_once(rig: Rig) -> None:
    other = HubId("11111111-0000-4000-8000-000000000000")
    async with joined(rig) as client:
        async with client.session(SessionHello(UID, 7)) as session:
            await session.beat(available=True)
            answer = await client.stand_by(IDENTITY, owner=other, epoch=8)
            assert (answer.accepted, answer.epoch, answer.again_after) == (True, 8, rig.again_after)
            assert answer.trust_bundle == rig.trust
            await is_ended(session)
            ended = await session.ended()
            assert isinstance(ended, port.SessionEpochError)
            assert (ended.epoch, ended.loss) == (8, SessionLoss.STALE)
            assert ((await client.stand_by(IDENTITY, owner=None, epoch=3)).epoch, await rig.owner()) == (8, (other, 8))
        assert await outdated(client, 7) == 8
        async with client.session(SessionHello(UID, 9)) as session:
            await session.beat(available=True)
            await session.farewell(other, 10)
            await is_ended(session)
        assert (await outdated(client, 9), await rig.owner()) == (10, (other, 10))
        async with client.session(SessionHello(UID, 11)) as session:
            assert await client.leave(IDENTITY)
            await session.ended()
            assert not await client.leave(IDENTITY)


async def test_last_words_end_a_session_of_the_kubernetes_api_too(tmp_path: Path) -> None:
    async with rig_of("api", tmp_path) as rig, joined(rig) as client, client.session(SessionHello(UID, 7)) as session:
        await session.farewell(HubId("11111111-0000-4000-8000-000000000000"), 8)
        await is_ended(session)
