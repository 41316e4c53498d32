"""A change of CA from the order to the end, made by a controller that may be killed between any two steps."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from hub.api.certificateauthorities.authority import AuthorityId, AuthorityOrder, Phase
from hub.api.certificateauthorities.rotation import RotationSnapshot
from hub.api.certificates import CertificateRecord, Lifetimes, Purpose
from hub.api.events import EventRecord
from hub.api.hubreplicas import LOST_AFTER, Replica
from hub.api.liveness import Beat
from hub.api.managedclusters.cluster import AVAILABLE, availability
from hub.controllers.certificates.rotation import Rotation
from hub.controllers.clock_guard import SETTLED, ClockGuard
from hub.issuer.key_storage import KeyFiles, SealedKeys
from hub.issuer.local import LocalIssuer, make_authority
from hub.issuer.rotating import RotatingIssuer
from hub.ports import Transaction
from hub.ports.identities import KeyPair, KeyPlace
from hub.registry.certificateauthorities import service as authorities
from hub.registry.certificateauthorities.service import NewAuthority, authority_id
from hub.registry.liveness import heartbeats as hearing
from hub.registry.managedclusters import service as clusters
from hub.replica.authorities import AuthorityFollower, KeyPlaces
from machinery import pki
from machinery.errors import ConflictError, UnavailableError
from machinery.identity import AgentId, ClusterName, SerialNumber
from machinery.pki.encryption import Seal
from machinery.runtime.clock import ManualClock
from tests.checks import check_refusal, check_refusal_of, present
from tests.fakes.inline_store import InlineStore

LIFETIMES = Lifetimes()
SECOND = timedelta(seconds=1)
SEAL = Seal([b"tests seal Secrets with this key"])


@dataclass
class World:
    folder: Path
    place: Callable[["World"], KeyPlace]
    clock: ManualClock = field(default_factory=ManualClock)
    recorded: list[EventRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = InlineStore(self.clock)
        self.steady = ClockGuard(self.clock, timedelta())
        self.issuer = RotatingIssuer()
        self.chosen = self.place(self)
        self.places = KeyPlaces(self.chosen, (KeyFiles(self.folder, read_only=True),))
        self.follower = AuthorityFollower(self.store, self.issuer, self.places, "one")
        first = LocalIssuer.open(self.folder, LIFETIMES, self.clock.now())
        self.first = authority_id(first.trust_bundle)
        self.store.transact(authorities.adopt, NewAuthority(first.trust_bundle, None))

    def controller(self) -> Rotation:
        async def make(seen: RotationSnapshot, _old: object) -> NewAuthority:
            known = [each.id for each in seen.authorities]
            return await self.places.made(known, self.issuer.snapshot.keys.get(self.first), LIFETIMES, self.clock.now())

        return Rotation(
            self.store,
            make,
            self.places,
            patience=timedelta(hours=24),
            recovery=LIFETIMES.recovery,
            api_version="hub/v1alpha1",
            record_event=self.recorded.append,
            clock_guard=self.steady,
        )

    def alive(self, name: str = "one") -> None:
        now = self.clock.now()
        replica = Replica(name, "", "", "", "", "", now, now, ready=True)
        self.store.transact(lambda tx: tx.replicas.put(replica))

    async def go_on(self, *, follows: bool = True) -> dict[AuthorityId, Phase]:
        """As a leader does, until nothing is due; a fresh controller for each step, as after a kill. Returns the phases."""
        for _ in range(20):
            self.clock.advance(timedelta(milliseconds=1))
            self.alive()
            if follows:
                await self.follower.look()
            if await self.controller().reconcile("all") is None and await self.controller().reconcile("all") is None:
                return self.phases
        raise AssertionError("the change of CA never rests")

    @property
    def phases(self) -> dict[AuthorityId, Phase]:
        return {each.id: each.phase for each in self.store.transact(lambda tx: tx.authorities.all())}

    @property
    def second(self) -> AuthorityId:
        return next(one for one in self.phases if one != self.first)

    def rotate(self, cannot: str | None = None) -> None:
        self.store.transact(authorities.rotate, "admin", cannot=cannot)

    def holds(self, cluster: str, purpose: Purpose, serial: int, signer: AuthorityId) -> None:
        now = self.clock.now()
        ends, signed_by = now + timedelta(days=90), f"hub/{signer}"
        names = ClusterName(cluster), AgentId("a")
        record = CertificateRecord(SerialNumber(serial), purpose, "u", (), now, ends, "k", now, *names, signed_by=signed_by)
        self.store.transact(lambda tx: tx.certificates.add(record))

    def joined(self, cluster: str, serial: int) -> None:
        """Its agent is connected, and takes another certificate when it is asked to."""
        self.holds(cluster, Purpose.AGENT, serial, self.first)
        named, record = ClusterName(cluster), self.store.state.certificates[SerialNumber(serial)]

        def seen(tx: Transaction) -> None:
            clusters.put(tx, {"metadata": {"name": cluster}, "spec": {"hubAcceptsClient": True}}, None, "admin")
            tx.heartbeats.set_session(named, "s1")
            authorities.note_trust(tx, [authorities.TrustReport(record, frozenset({"f" * 64}))])

        self.store.transact(seen)


def in_files(world: World) -> KeyPlace:
    return KeyFiles(world.folder, read_only=False)


def sealed(world: World) -> KeyPlace:
    return SealedKeys(world.store, SEAL)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, in_files)


@pytest.fixture
async def retiring(world: World) -> World:
    """The first CA retires: a recovery certificate that it signed is good still."""
    await world.go_on()
    world.holds("edge", Purpose.RECOVERY, 1, world.first)
    world.rotate()
    assert (await world.go_on())[world.first] is Phase.RETIRING
    return world


@pytest.mark.parametrize("place", [in_files, sealed], ids=["files", "database"])
async def test_hub_without_agents_changes_its_ca_at_once(tmp_path: Path, place: Callable[[World], KeyPlace]) -> None:
    world = World(tmp_path, place)
    assert await world.go_on() == {world.first: Phase.ISSUING}
    first = present(await world.places.find(world.first))
    world.rotate()
    assert await world.go_on() == {world.first: Phase.RETIRED, world.second: Phase.ISSUING}
    assert world.issuer.trust_bundle == world.issuer.client_trust
    assert [event.reason for event in world.recorded] == ["Distributing", "Issuing", "Outgoing", "Retiring", "Retired"]
    assert await world.places.find(world.first) is None or world.chosen.refusal is None
    assert world.issuer.authorities == (f"hub/{world.second}",)
    await world.chosen.keep(world.first, first)  # the leader was killed before it removed the key
    await world.controller().reconcile("all")
    assert await world.chosen.find(world.first) is None


class Held(KeyFiles):
    """Where no key can be removed while `error` says why."""

    error: Exception | None = None

    async def forget(self, authority: AuthorityId) -> None:
        if self.error is not None:
            raise self.error
        await super().forget(authority)


async def test_a_key_that_cannot_be_removed_with_its_ca_is_later_and_holds_up_nothing(tmp_path: Path) -> None:
    place = Held(tmp_path, read_only=False)
    place.error = UnavailableError("the Secret cannot be written")
    world = World(tmp_path, lambda _world: place)
    await world.go_on()
    world.rotate()
    leader = world.controller()
    with capture_logs() as lines:
        for _ in range(20):
            world.alive()
            await world.follower.look()
            await leader.reconcile("all")
    assert world.phases == {world.first: Phase.RETIRED, world.second: Phase.ISSUING}
    assert [event.reason for event in world.recorded][-1] == "Retired"
    assert [line["ca"] for line in lines if line["log_level"] == "warning"] == [world.first], "once"
    assert await world.chosen.find(world.first) is not None
    place.error = None
    await leader.reconcile("all")
    assert await world.chosen.find(world.first) is None


async def test_no_key_is_in_the_database_in_clear(tmp_path: Path) -> None:
    world = World(tmp_path, sealed)
    await world.follower.look()
    world.rotate()
    await world.go_on()
    pair, kept = present(await world.chosen.find(world.second)), world.store.state.sealed_keys[world.second]
    lines = [line for line in pair.key.splitlines() if line and not line.startswith(b"-----")]
    assert not any(line in kept for line in lines)
    assert kept.startswith(SEAL.header)
    await check_refusal_of(UnavailableError, SealedKeys(world.store, Seal.generate()).find(world.second), match="does not have")


async def test_a_sealed_key_opens_for_its_own_ca_alone_and_is_sealed_anew_when_the_key_is_exchanged(tmp_path: Path) -> None:
    world = World(tmp_path, sealed)
    await world.follower.look()
    first = await world.chosen.find(world.first)
    assert first is not None, "it lay in files, and moved over"
    state, moved = world.store.state, AuthorityId("f" * 16)
    other, key = replace(state.authorities[world.first], id=moved), state.sealed_keys[world.first]
    world.store.ask(lambda tx: tx.authorities.put(other))
    world.store.ask(lambda tx: tx.authorities.keep_key(moved, key))
    await check_refusal_of(UnavailableError, world.chosen.find(moved), match="changed in the database, or moved")
    newer = Seal([b"another key of thirty-two bytes!", b"tests seal Secrets with this key"])
    assert (await SealedKeys(world.store, newer).find(world.first)) == first
    assert world.store.state.sealed_keys[world.first].startswith(newer.header)


@pytest.mark.parametrize("place", [in_files, sealed], ids=["files", "database"])
async def test_replica_without_the_key_holds_up_its_use(tmp_path: Path, place: Callable[[World], KeyPlace]) -> None:
    world = World(tmp_path, place)
    await world.go_on()
    world.rotate()
    await world.go_on(follows=False)
    assert (world.phases[world.second], world.phases[world.first]) == (Phase.DISTRIBUTING, Phase.ISSUING)
    assert world.issuer.current.facts.key_hash.startswith(world.first)
    await world.go_on()
    assert world.issuer.current.facts.key_hash.startswith(world.second)


async def test_a_replica_without_the_key_is_not_passed_over_because_the_database_was_away(world: World) -> None:
    await world.go_on()
    world.alive("two")
    world.rotate()
    assert (await world.go_on())[world.second] is Phase.DISTRIBUTING
    world.clock.advance(timedelta(minutes=1))  # nobody could say that he lives, and the leader is the first who can again
    world.store.transact(hearing.mark_coverage, "one", began=False, jumped=False)
    assert (await world.go_on())[world.second] is Phase.DISTRIBUTING
    for _ in range(LOST_AFTER // SECOND):
        world.clock.advance(SECOND)
        world.store.transact(hearing.mark_coverage, "one", began=False, jumped=False)
    assert (await world.go_on())[world.second] is Phase.ISSUING, "it could have spoken by now, and is dead"


async def test_a_key_that_was_kept_before_the_leader_was_killed_is_used_for_the_next_ca(tmp_path: Path) -> None:
    world = World(tmp_path, in_files)
    await world.go_on()
    authority, key = make_authority(LIFETIMES, world.clock.now())
    orphan = authority_id(authority.certificate)
    await world.chosen.keep(orphan, KeyPair(authority.certificate, key))
    world.rotate()
    assert await world.go_on() == {world.first: Phase.RETIRED, orphan: Phase.ISSUING}
    assert (tmp_path / f"ca-{orphan}.key").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "ca.key").exists(), "a retired CA's key is nobody's"


async def test_where_no_key_can_be_kept_a_change_is_refused_early_unless_an_operator_brought_one(tmp_path: Path) -> None:
    world = World(tmp_path, lambda world: KeyFiles(world.folder, read_only=True))
    await world.go_on()
    assert world.places.refusal is not None
    check_refusal(ConflictError, world.rotate, await authorities_refusal(world), match="hub keys next")
    authority, key = make_authority(LIFETIMES, world.clock.now())
    (tmp_path / "ca-next.crt").write_bytes(authority.certificate)
    assert await authorities_refusal(world) is not None, "half a pair is on its way"
    (tmp_path / "ca-next.key").write_bytes(key)
    world.rotate(await authorities_refusal(world))
    assert (await world.go_on())[authority_id(authority.certificate)] is Phase.ISSUING
    assert (tmp_path / "ca.key").exists(), "what was given is not ours to remove"


async def authorities_refusal(world: World) -> str | None:
    return await world.places.cannot([each.id for each in world.issuer.snapshot.authorities])


async def test_what_a_retiring_ca_signed_is_counted_until_its_recovery_certificates_have_ended(
    retiring: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorities, "_members", None)  # for three months nothing depends on the fleet, so it is not read
    assert retiring.issuer.trust_bundle == retiring.store.state.authorities[retiring.second].certificate
    assert retiring.store.state.authorities[retiring.first].certificate in retiring.issuer.client_trust
    assert f"hub/{retiring.first}" in retiring.issuer.authorities, "its revocation list is signed still"
    retiring.clock.advance(timedelta(days=91))
    assert (await retiring.go_on())[retiring.first] is Phase.RETIRED
    assert present(retiring.store.transact(lambda tx: tx.certificates.by_serial(SerialNumber(1)))).revoked_at is None


@pytest.mark.parametrize("phase", [Phase.OUTGOING, Phase.RETIRING])
async def test_a_database_clock_that_is_a_year_ahead_for_a_moment_ends_no_ca(world: World, phase: Phase) -> None:
    """By such a clock nobody holds a certificate of the old one any more."""
    await world.go_on()
    world.holds("edge", Purpose.AGENT if phase is Phase.OUTGOING else Purpose.RECOVERY, 1, world.first)
    if phase is Phase.OUTGOING:
        world.store.transact(clusters.put, {"metadata": {"name": "edge"}, "spec": {"hubAcceptsClient": True}}, None, "admin")
    world.rotate()
    await world.go_on()
    world.steady = ClockGuard(world.clock, SETTLED)
    await world.go_on()
    world.clock.advance(SETTLED)
    for jump in (timedelta(days=365), -timedelta(days=365)):
        world.clock.set_forward(jump)
        assert (await world.go_on())[world.first] is phase
    world.clock.advance(timedelta(days=91))
    world.steady = ClockGuard(world.clock, timedelta())
    assert (await world.go_on())[world.first] is Phase.RETIRED


async def test_a_ca_goes_at_once_where_an_operator_says_so_whatever_the_clock(retiring: World) -> None:
    retiring.steady = ClockGuard(retiring.clock, SETTLED)
    retiring.store.transact(authorities.proceed, retiring.first, "admin")
    assert (await retiring.go_on())[retiring.first] is Phase.RETIRED


async def test_a_ca_that_waits_for_its_time_holds_up_no_other_that_is_compromised_or_asked_to_go(retiring: World) -> None:
    second = retiring.second
    retiring.holds("ann", Purpose.OPERATOR, 2, second)
    retiring.rotate()
    await retiring.go_on()
    third = next(one for one in retiring.phases if one not in (retiring.first, second))
    assert retiring.phases == {retiring.first: Phase.RETIRING, second: Phase.OUTGOING, third: Phase.ISSUING}
    retiring.clock.advance(timedelta(days=91))  # what the first CA signed has ended, by a clock that is not believed
    retiring.steady = ClockGuard(retiring.clock, SETTLED)
    retiring.holds("edge", Purpose.RECOVERY, 3, second)
    retiring.store.transact(authorities.proceed, second, "admin")
    await retiring.go_on()
    assert (retiring.phases[retiring.first], retiring.phases[second]) == (Phase.RETIRING, Phase.RETIRING)
    retiring.store.transact(authorities.give_up, third, "admin", timedelta(minutes=1), cannot=None)
    await retiring.go_on()
    assert (retiring.phases[retiring.first], retiring.phases[third]) == (Phase.RETIRING, Phase.RETIRED)
    assert Phase.ISSUING in retiring.phases.values()
    retiring.steady = ClockGuard(retiring.clock, timedelta())
    assert (await retiring.go_on())[retiring.first] is Phase.RETIRED


async def test_a_ca_that_cannot_be_made_does_not_hold_up_the_end_of_another(tmp_path: Path) -> None:
    world = World(tmp_path, lambda world: KeyFiles(world.folder, read_only=True))
    await world.go_on()
    world.holds("edge", Purpose.RECOVERY, 1, world.first)
    brought, key = make_authority(LIFETIMES, world.clock.now())
    (tmp_path / "ca-next.crt").write_bytes(brought.certificate)
    (tmp_path / "ca-next.key").write_bytes(key)
    for _ in range(2):  # for the second time no pair is brought
        world.rotate()
        await world.go_on()
    assert world.phases[world.first] is Phase.RETIRING
    world.store.transact(authorities.proceed, world.first, "admin")
    assert await world.go_on() == {world.first: Phase.RETIRED, world.second: Phase.ISSUING}
    assert world.store.state.authorities[world.second].order is AuthorityOrder.ROTATE


@pytest.mark.parametrize("within", [timedelta(minutes=1), timedelta()])
async def test_agents_have_their_time_to_leave_a_compromised_ca_whatever_the_clock(world: World, within: timedelta) -> None:
    """By a clock that is ahead they have had it: they go when it is believed, or when they were to have none."""
    await world.go_on()
    world.joined("edge", 1)
    world.steady = ClockGuard(world.clock, SETTLED)
    await world.go_on()
    world.store.transact(authorities.give_up, world.first, "admin", within, cannot=None)
    await world.go_on()
    for _phase in ("trusting", "renewing"):
        world.clock.set_forward(timedelta(hours=1))
        await world.go_on()
    assert world.phases[world.first] is (Phase.OUTGOING if within else Phase.RETIRED)
    world.clock.advance(SETTLED)
    assert (await world.go_on())[world.first] is Phase.RETIRED


async def test_of_a_compromised_ca_nothing_is_left_and_nobody_vouches_for_the_next_by_it(world: World) -> None:
    await world.go_on()
    for serial, signer in ((1, world.first), (2, world.first)):
        world.holds("edge", Purpose.AGENT, serial, signer)
    within = timedelta(seconds=30)
    world.store.transact(authorities.give_up, world.first, "admin", within, cannot=None)
    assert await world.go_on() == {world.first: Phase.RETIRED, world.second: Phase.ISSUING}
    assert set(world.store.transact(lambda tx: tx.certificates.revoked_since(world.clock.now() - within))) == {1, 2}
    old = world.store.state.authorities[world.first]
    assert old.compromised
    assert old.certificate not in world.issuer.client_trust
    assert world.issuer.snapshot.chain_above(world.second) == b""


async def test_silent_agent_takes_from_no_other_the_time_to_leave_a_compromised_ca(world: World) -> None:
    """One agent takes the next CA and renews, one takes it and does not renew, on purpose, and one is frozen."""
    world.steady = ClockGuard(world.clock, SETTLED)
    await world.go_on()
    world.clock.advance(SETTLED)  # a leader older than that
    for serial, cluster in enumerate(("moves", "stays", "frozen"), 1):
        world.joined(cluster, serial)
        world.store.transact(clusters.set_condition, ClusterName(cluster), AVAILABLE, "hub")
    records = [world.store.state.certificates[SerialNumber(serial)] for serial in (1, 2, 3)]

    def available(cluster: str) -> str:
        return present(availability(world.store.transact(clusters.find, ClusterName(cluster)).document)).reason

    def trusts_next(tx: Transaction) -> None:
        next_ca = next(each for each in tx.authorities.all() if each.id != world.first)
        mark = pki.parse_certificate(next_ca.certificate).fingerprint
        authorities.note_trust(tx, [authorities.TrustReport(record, frozenset({mark})) for record in records[:2]])

    beats = (Beat(ClusterName(cluster), timedelta(), available=True) for cluster in ("moves", "stays"))
    world.store.transact(lambda tx: tx.heartbeats.store(tuple(beats)))
    seen = world.store.transact(authorities.rotation_snapshot)
    old = seen.of(Phase.ISSUING)[0]
    assert [each.cluster for each in seen.silent(old)] == ["frozen"], "it has a session, and is named before the order"
    world.store.transact(authorities.give_up, world.first, "admin", timedelta(minutes=1), cannot=None)
    await world.go_on()
    world.store.transact(trusts_next)
    began = world.clock.now()
    for phase in (Phase.ISSUING, Phase.OUTGOING):
        while world.phases[world.first] is phase and world.clock.now() - began < timedelta(seconds=55):
            world.clock.advance(timedelta(seconds=1))
            await world.go_on()
        assert world.phases[world.first] is phase, "it has the whole time"
        if phase is Phase.ISSUING:
            world.clock.advance(timedelta(seconds=6))
            await world.go_on()
            began = world.clock.now()
    assert {available(cluster) for cluster in ("moves", "stays", "frozen")} == {AVAILABLE.reason}
    world.holds("moves", Purpose.AGENT, 9, world.second)
    world.store.transact(
        authorities.note_trust,
        [authorities.TrustReport(world.store.state.certificates[SerialNumber(9)], frozenset({"f" * 64}))],
    )
    world.clock.advance(timedelta(seconds=6))
    assert (await world.go_on())[world.first] is Phase.RETIRED
    seen = world.store.transact(authorities.rotation_snapshot)
    assert seen.left_behind == {world.first: ("frozen", "stays")}
    assert [available(cluster) for cluster in ("moves", "stays", "frozen")] == [AVAILABLE.reason, "Revoked", "Revoked"]


async def test_however_late_the_next_ca_issues_agents_have_time_to_renew(world: World) -> None:
    await world.go_on()
    world.joined("edge", 1)
    world.store.transact(authorities.give_up, world.first, "admin", timedelta(minutes=1), cannot=None)
    await world.go_on()
    world.clock.advance(timedelta(minutes=5))  # a replica had to be waited for
    assert (await world.go_on())[world.first] is Phase.OUTGOING
    world.clock.advance(timedelta(seconds=59))
    assert (await world.go_on())[world.first] is Phase.OUTGOING
    world.clock.advance(timedelta(seconds=2))
    assert (await world.go_on())[world.first] is Phase.RETIRED
