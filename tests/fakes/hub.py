"""A hub in memory that agents dial without a network; trusted because the contract suite of `HubClient` runs on it too.

It keeps the promises of the wire protocol: the same requester with the same bytes gets the same request, an approval is issued
exactly once, a session is superseded by the next one of its cluster, a beat is acknowledged in order, and nothing is taken of
a lower epoch than the highest that was heard.
"""

import asyncio
import json
from base64 import urlsafe_b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from machinery import errors, pki
from machinery.client.kubeconfig import ClusterEntry, Credential, HubEndpoint, write_kubeconfig
from machinery.identity import (
    BOOTSTRAP_USER_PREFIX,
    RECOVERY_USER_PREFIX,
    AddOnName,
    AgentId,
    CertificateSubject,
    ClusterName,
    CredentialId,
    HubId,
    SerialNumber,
    agent_subject,
    bootstrap_subject,
    recovery_subject,
)
from machinery.meta.conditions import Condition
from machinery.runtime.clock import Clock
from spoke.credentials.trust_bundle import fingerprints
from spoke.domain.addon import AddOn, AddOnToken
from spoke.domain.hubs import HubAcceptance, ListedHub
from spoke.domain.names import AgentIdentity
from spoke.domain.next_step import SessionLoss, loss_of
from spoke.domain.report import AgentEvent, ClusterReport, ExternalEndpoint, ManagedNamespace
from spoke.domain.schedule import RequestedRenewal
from spoke.ports import hub as ports
from spoke.transports import OpenSession

HUB_ID = HubId("0f1e2d3c-0000-4000-8000-000000000001")
BACKDATE = timedelta(minutes=5)
TOKEN_LIFETIME = timedelta(hours=1)


def service_account_token(uid: str, begin: datetime, end: datetime, *, number: int = 0, **claims: Any) -> str:
    """What looks like a ServiceAccount's token; its signature is none."""
    reported = {
        "iat": int(begin.timestamp()),
        "exp": int(end.timestamp()),
        "jti": str(number),
        "kubernetes.io": {"serviceaccount": {"uid": uid}},
        **claims,
    }
    parts = [urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=").decode() for each in ({"alg": "ES256"}, reported)]
    return ".".join((*parts, "c2lnbmF0dXJl"))


@dataclass(slots=True)
class Request:
    """A certificate signing request as the hub has it."""

    name: str
    requester: str
    pem: bytes
    cluster: ClusterName
    agent: AgentId
    addon: tuple[AddOnName, str] | None = None
    state: str = "pending"
    message: str = ""
    certificate: bytes = b""
    recovery: bytes = b""


@dataclass(slots=True)
class KnownCluster:
    """A ManagedCluster as the hub has it."""

    uid: str
    cluster_uid: str
    accepted: bool
    endpoints: tuple[ExternalEndpoint, ...] = ()
    epoch: int = 0  # the highest that was heard
    owner: HubId | None = None  # the hub that holds the session; None: not reported
    hubs: tuple[ListedHub, ...] = ()  # the agent's list, as last reported
    deleting: bool = False
    denied: bool = False  # it was accepted before, and is not now
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


class MemoryHub:
    """Set its behaviour; read the calls it got."""

    verdict: errors.DenialCause | None = None  # the machine-readable cause that a revoked one receives; None: nothing
    renew_within: timedelta | None = None
    """It asks for a renewal ahead of time, of the certificates that it had issued by then (`ask_to_renew`)."""
    renew_addons_before: datetime | None = None
    refuse_new = False  # stand_by takes no certificate but the first one that was issued
    _asked: frozenset[SerialNumber] = frozenset()

    second_agent = ""  # what it says of another agent that it has refused
    attestation_audience = ""  # for whom a token must be that a first registration brings

    def __init__(self, clock: Clock, *, hub_id: HubId = HUB_ID, approve: bool = True, accept: bool = True) -> None:
        self.clock = clock
        self.agent_clock: Clock | None = None  # the agents' clock, where it is another one
        self.hub_id = hub_id
        self.approve = approve
        self.accept = accept
        self.lifetime = timedelta(days=30)
        self.lease_duration = timedelta(seconds=60)
        self.beat_interval = timedelta(milliseconds=20)
        self.away = False  # every call fails as if nobody listened
        self.faults: dict[str, Exception] = {}  # errors of calls, by the names in `calls`
        self.silent = False  # beats are taken and never acknowledged
        self.requests: dict[str, Request] = {}
        self.clusters: dict[ClusterName, KnownCluster] = {}
        self.users: dict[SerialNumber, str] = {}
        self.revoked: set[SerialNumber] = set()
        self.outlived: set[SerialNumber] = set()
        """Of a CA that is on its way out: use the agent's recovery certificate."""
        self.issued: list[SerialNumber] = []
        self.sessions: list[MemorySession] = []
        self.addons: tuple[AddOn, ...] | None = ()  # none: they cannot be seen now
        self.namespaces: tuple[ManagedNamespace, ...] = ()
        self.tokens: list[str] = []  # the tokens of add-ons that were issued

        self.calls: list[str] = []
        self.accepted_writes: list[tuple[ClusterName, int]] = []
        """Cluster and epoch of each beat and report that was taken with an epoch."""
        self.plain = False  # it is of a release that knows nothing of several hubs
        self.again_after: timedelta | None = None
        self.trusted: dict[ClusterName, tuple[str, ...]] = {}
        """By which CAs the agent of each cluster says that it knows this hub."""
        self.greeted: list[tuple[str, ...]] = []  # the same, as each session began
        self.dialled = 0
        self._changed = asyncio.Event()
        begins, ends = clock.now() - timedelta(days=2), clock.now() + timedelta(days=3650)
        self.authority: pki.CertificateAuthority = pki.create_authority(
            CertificateSubject("memory hub"), pki.generate_key(), pki.random_serial(), begins, ends
        )
        self.bundle = self.authority.certificate  # what it wants to be known by
        self.vouchers: tuple[bytes, ...] = (self.authority.certificate,)  # who trusts one of these CAs (PEM) can connect

    def dial(self, address: ports.HubAddress | None, identity: ports.ClientIdentity) -> "MemoryHubClient":
        """The agent's `Dial`; without an address any peer is trusted."""
        self.dialled += 1
        client = RecoveringMemoryClient if identity.recovers else MemoryHubClient
        return client(self, identity, address.ca if address is not None else None)

    def credential(self, subject: CertificateSubject | None = None, *, lifetime: timedelta = timedelta(hours=1)) -> Credential:
        """A client certificate of this hub; without a subject a bootstrap credential."""
        key = pki.generate_key()
        subject = subject or bootstrap_subject(CredentialId("boot"))
        return Credential(self._sign(subject, pki.public_key_of(key), lifetime), key)

    def bootstrap_kubeconfig(
        self, *, lifetime: timedelta = timedelta(hours=1), name: str = "hub", cluster: str | None = None
    ) -> bytes:
        """What hubctl would write."""
        endpoint = HubEndpoint("127.0.0.1:8443", self.hub_id, cluster_name=cluster)
        entry = ClusterEntry(name, "https://127.0.0.1:6443", self.authority.certificate, endpoint)
        return write_kubeconfig(entry, self.credential(lifetime=lifetime), user="bootstrap")

    def approve_request(self, name: str) -> None:
        """Approves and issues: once."""
        request = self.requests[name]
        if request.state != "pending":
            return
        facts = pki.check_request(request.pem)
        subject = agent_subject(request.cluster, request.agent) if request.addon is None else facts.subject
        request.certificate = self._sign(subject, facts.public_key, self.lifetime)
        if request.addon is None:
            request.recovery = self._sign(recovery_subject(request.cluster, request.agent), facts.public_key, self.lifetime * 3)
        self.issued.append(pki.parse_certificate(request.certificate).serial)
        request.state = "issued"
        self.changed()

    def deny_request(self, name: str, message: str = "not ours") -> None:
        self.requests[name].state = "denied"
        self.requests[name].message = message
        self.changed()

    def set_accepted(self, cluster: ClusterName, *, accepted: bool) -> None:
        known = self.clusters[cluster]
        known.denied, known.accepted = known.accepted and not accepted, accepted
        self.changed()

    def push_trust(self, bundle: bytes) -> None:
        """From now on it wants to be known by these CAs, and says so in every session."""
        self.bundle = bundle
        for session in self.open_sessions:
            session.push(bundle)

    def ask_to_renew(self, within: timedelta) -> None:
        """Whatever was issued until now is to be renewed."""
        self.renew_within, self._asked = within, frozenset(self.users)
        self.renew_addons_before = self.clock.now()
        self.changed()

    def asked_of(self, identity: ports.ClientIdentity) -> timedelta | None:
        return self.renew_within if pki.parse_certificate(identity.certificate).serial in self._asked else None

    def renewal_of(self, identity: ports.ClientIdentity) -> RequestedRenewal | None:
        within = self.asked_of(identity)
        return RequestedRenewal(within, self.renew_addons_before) if self.renew_addons_before is not None else None

    def set_addons(self, addons: Sequence[AddOn]) -> None:
        self.addons = tuple(addons)
        self.changed()

    def note_driver(self, name: AddOnName, driver: str) -> None:
        """What an agent wants noted of its add-on; a ServiceAccount comes with it."""

        def noted(addon: AddOn) -> AddOn:
            entries = [replace(each, driver=driver) if each.for_hub else each for each in addon.registrations]
            return replace(addon, registrations=tuple(entries), account_uid=f"uid-of-{name}" if driver == "token" else "")

        self.set_addons([noted(addon) if addon.name == name else addon for addon in self.addons or ()])

    def set_namespaces(self, *wanted: ManagedNamespace) -> None:
        self.namespaces = wanted
        self.changed()

    @property
    def session(self) -> "MemorySession":
        """The newest session."""
        return self.sessions[-1]

    @property
    def open_sessions(self) -> list["MemorySession"]:
        return [session for session in self.sessions if not session.over]

    def changed(self) -> None:
        for session in self.sessions:
            session._news.set()
        self._changed.set()
        self._changed = asyncio.Event()

    async def next_change(self) -> None:
        await self._changed.wait()

    def user_of(self, identity: ports.ClientIdentity) -> str:
        """Raises as the door would: nobody listening, a certificate that TLS or the records refuse."""
        if self.away:
            raise errors.UnavailableError("connection refused")
        certificate = pki.parse_certificate(identity.certificate)
        if not certificate.not_before <= self.clock.now() <= certificate.not_after:
            raise errors.UnavailableError("Socket closed")
        if certificate.serial not in self.users or certificate.serial in self.revoked:
            message = "the certificate is not known here"
            raise errors.UnauthorizedError(message, causes=self.verdict.because(message) if self.verdict else ())
        if certificate.serial in self.outlived:
            raise errors.UnauthorizedError("its CA goes", causes=errors.DenialCause.AUTHORITY_RETIRED.because("its CA goes"))
        return self.users[certificate.serial]

    def heard(self, cluster: ClusterName, epoch: int, owner: HubId | None) -> None:
        """Somebody speaks with this epoch: a higher one ends the sessions of lower ones. Raises StaleEpochError."""
        known = self.clusters[cluster]
        if self.plain or not epoch:
            return
        if epoch < known.epoch:
            raise ports.SessionEpochError(f"the epoch {known.epoch} of this cluster is known, {epoch} is older", known.epoch)
        higher, known.epoch, known.owner = epoch > known.epoch, epoch, owner
        for other in self.open_sessions:
            if higher and other.cluster == cluster and other.epoch < epoch and owner != self.hub_id:
                other.end(ports.SessionEpochError(f"the epoch {epoch} of this cluster is known", epoch))

    def _sign(self, subject: CertificateSubject, public_key: bytes, lifetime: timedelta) -> bytes:
        serial, now = pki.random_serial(), self.clock.now()
        self.users[serial] = subject.common_name
        return self.authority.sign(pki.Plan(subject, public_key, serial, now - BACKDATE, now + lifetime))


class MemoryHubClient(ports.HubClient):
    """One credential at a MemoryHub."""

    def __init__(self, hub: MemoryHub, identity: ports.ClientIdentity, trust: bytes | None = None) -> None:
        self._trust = trust
        self._hub = hub
        self._identity = identity
        self._attestation = ""

    @property
    def features(self) -> frozenset[ports.TransportFeature]:
        return frozenset(ports.TransportFeature)

    async def info(self) -> ports.HubInfo:
        self._enter("info")
        return ports.HubInfo(self._hub.hub_id, self._hub.clock.now(), "v0", self._hub.bundle, self._hub.attestation_audience)

    def bring(self, attestation: str) -> None:
        self._attestation = attestation

    def _check_attested(self) -> None:
        audience = self._hub.attestation_audience
        if audience and self._attestation != f"token for {audience}":
            raise errors.ForbiddenError("attestation failed: see the reason in the hub's audit log")

    async def ensure_cluster(
        self,
        agent: AgentIdentity,
        *,
        endpoints: Sequence[ExternalEndpoint],
        annotations: Mapping[str, str],
        labels: Mapping[str, str] = ports.NONE,
    ) -> ports.RegistrationState:
        cluster, cluster_uid = agent.cluster, agent.cluster_uid
        self._enter("ensure_cluster")
        self._check_attested()
        known = self._hub.clusters.get(cluster)
        if known is not None and known.cluster_uid != cluster_uid:
            raise errors.AlreadyExistsError(f'the name "{cluster}" belongs to another cluster')
        created = known is None
        if known is None:
            known = KnownCluster(f"uid-{cluster}", cluster_uid, self._hub.accept, tuple(endpoints), labels=dict(labels))
            self._hub.clusters[cluster] = known
        known.annotations = {**known.annotations, **annotations}
        return ports.RegistrationState(created=created, accepted=known.accepted, uid=known.uid)

    async def submit_request(
        self, agent: AgentIdentity, request: bytes, *, duration: timedelta | None, addon: tuple[AddOnName, str] | None = None
    ) -> str:
        del duration
        user = self._enter("submit_request")
        if user.startswith(BOOTSTRAP_USER_PREFIX):
            self._check_attested()
        pki.check_request(request)
        for known in self._hub.requests.values():
            if (known.requester, known.pem) == (user, request):
                return known.name
        name = f"{agent.cluster}-{len(self._hub.requests):05}"
        self._hub.requests[name] = Request(name, user, request, agent.cluster, agent.agent, addon)
        if self._hub.approve:
            self._hub.approve_request(name)
        return name

    async def follow_request(self, name: str) -> AsyncGenerator[ports.CSRState, None]:
        user, last_state = self._enter("follow_request"), ""
        while True:
            request = self._hub.requests.get(name)
            if request is None:
                raise errors.NotFoundError(f'there is no request "{name}"')
            if request.requester != user:
                raise errors.ForbiddenError("the request is somebody else's")
            if request.state != last_state:
                last_state = request.state
                yield ports.CSRState(
                    state=last_state,
                    message=request.message,
                    certificate=request.certificate,
                    recovery_certificate=request.recovery,
                    hub_time=self._hub.clock.now(),
                )
                continue  # it may have changed while the reader was busy
            if last_state in ("issued", "denied", "failed"):
                return
            await self._hub.next_change()
            self._enter("follow_request")

    async def addon_token(self, _cluster: ClusterName, addon: AddOnName, duration: timedelta) -> AddOnToken:
        self._enter("addon_token")
        found = next((each for each in self._hub.addons or () if each.name == addon), None)
        if found is None:
            raise errors.NotFoundError(f'there is no add-on "{addon}"')
        if not found.account_uid:
            raise errors.ConflictError(f'the ServiceAccount of add-on "{addon}" is not ready yet')
        begin = self._hub.clock.now().replace(microsecond=0)
        end = begin + min(duration, TOKEN_LIFETIME)
        token = service_account_token(found.account_uid, begin, end, number=len(self._hub.tokens))
        self._hub.tokens.append(token)
        return AddOnToken(token, end)

    @asynccontextmanager
    async def session(self, greeting: ports.SessionHello) -> AsyncIterator[ports.HubSession]:
        try:
            user = self._enter("session")
        except errors.UnauthorizedError as error:
            raise ports.HubLostError(error.message, loss_of(error.denial_cause, SessionLoss.UNAUTHENTICATED)) from error
        except errors.UnavailableError as error:
            raise ports.HubLostError(error.message) from error
        cluster = ClusterName(user.split(":")[2])
        known = self._hub.clusters.get(cluster)
        if known is None:
            raise ports.HubLostError("there is no such cluster", SessionLoss.FORGOTTEN)
        if known.cluster_uid != greeting.cluster_uid:
            raise ports.HubLostError("the name belongs to another cluster", SessionLoss.REFUSED)
        self._hub.heard(cluster, greeting.epoch, self._hub.hub_id)
        known.hubs = greeting.hubs
        for other in self._hub.open_sessions:
            if other.cluster == cluster:
                other.end(ports.HubLostError("superseded", SessionLoss.SUPERSEDED))
        session = MemorySession(self._hub, cluster, self._identity, epoch=greeting.epoch)
        self._hub.trusted[cluster] = greeting.trusted
        self._hub.greeted.append(greeting.trusted)
        if greeting.trusted and greeting.trusted != fingerprints(self._hub.bundle):
            session.push(self._hub.bundle)
        self._hub.sessions.append(session)
        for _ in range(10):  # the welcome travels longer than the word to the session that it supersedes
            await asyncio.sleep(0)
        try:
            yield session
        finally:
            session.end(ports.HubLostError("the session was closed"))

    async def stand_by(
        self, agent: AgentIdentity, *, owner: HubId | None, epoch: int, trusted: Sequence[str] = ()
    ) -> ports.StandbyAnswer:
        cluster = agent.cluster
        if self._hub.refuse_new and pki.parse_certificate(self._identity.certificate).serial != self._hub.issued[0]:
            raise errors.UnauthorizedError("this certificate is not known here")
        known = self._known(agent, "stand_by")
        if known is None:
            raise errors.NotFoundError(f'there is no cluster "{cluster}"')
        with suppress(ports.SessionEpochError):
            self._hub.heard(cluster, epoch, owner)
        self._hub.trusted[cluster] = tuple(trusted)
        within = self._hub.asked_of(self._identity)
        return ports.StandbyAnswer(
            known.accepted, known.epoch, self._hub.clock.now(), self._hub.bundle, self._hub.again_after, within
        )

    async def leave(self, agent: AgentIdentity) -> bool:
        cluster = agent.cluster
        if self._known(agent, "leave") is None:
            return False
        del self._hub.clusters[cluster]
        for session in self._hub.open_sessions:
            if session.cluster == cluster:
                session.end(ports.HubLostError("the cluster has left", SessionLoss.FORGOTTEN))
        return True

    async def acceptance(self, cluster: ClusterName) -> HubAcceptance:
        self._enter("acceptance")
        known = self._hub.clusters.get(cluster)
        if known is None or self._hub.plain:
            return HubAcceptance.UNKNOWN
        if known.accepted:
            return HubAcceptance.ACCEPTED
        return HubAcceptance.DENIED if known.denied else HubAcceptance.WAITING

    async def withdraw(self, agent: AgentIdentity) -> bool:
        user = self._enter("withdraw")
        if self._hub.plain:
            raise errors.ForbiddenError("a bootstrap certificate opens no session")
        for name, request in list(self._hub.requests.items()):
            if (request.requester, request.cluster, request.agent, request.state) == (
                user,
                agent.cluster,
                agent.agent,
                "pending",
            ):
                del self._hub.requests[name]
        known = self._hub.clusters.get(agent.cluster)
        if known is None or known.cluster_uid != agent.cluster_uid:
            return True
        if known.accepted or known.denied:
            return False
        del self._hub.clusters[agent.cluster]
        return True

    async def close(self) -> None:
        """It holds nothing open."""

    def _known(self, agent: AgentIdentity, call: str) -> KnownCluster | None:
        """The cluster of a call that only its own agent may make."""
        user = self._enter(call)
        if self._hub.plain:
            raise errors.MethodNotAllowedError("unknown method")
        if user.split(":")[2:3] != [agent.cluster]:
            raise errors.ForbiddenError("only the cluster's own agent may say that")
        known = self._hub.clusters.get(agent.cluster)
        if known is not None and known.cluster_uid != agent.cluster_uid:
            raise errors.ForbiddenError("the name belongs to another cluster")
        return known

    def _met(self) -> str:
        if self._trust is not None and not any(voucher in self._trust for voucher in self._hub.vouchers):
            raise errors.UnavailableError("certificate verify failed")
        return self._hub.user_of(self._identity)

    def _enter(self, call: str) -> str:
        self._hub.calls.append(call)
        user = self._met()
        if user.startswith(RECOVERY_USER_PREFIX):
            raise errors.ForbiddenError("a recovery certificate opens nothing else")
        return self._unless_at_fault(call, user)

    def _unless_at_fault(self, call: str, user: str) -> str:
        if (fault := self._hub.faults.get(call)) is not None:
            raise fault
        return user


class RecoveringMemoryClient(MemoryHubClient):
    """A recovery certificate at a MemoryHub: knows only the request that it has submitted itself."""

    _asked = False

    async def submit_request(self, *asked: Any, **further: Any) -> str:
        self._asked = True
        return await super().submit_request(*asked, **further)

    async def follow_request(self, name: str) -> AsyncGenerator[ports.CSRState, None]:
        if not self._asked:
            raise errors.NotFoundError(name)
        async for state in super().follow_request(name):
            yield state

    def _enter(self, call: str) -> str:
        user = self._met()
        self._hub.calls.append(f"recover {call}")
        if not user.startswith(RECOVERY_USER_PREFIX):
            raise errors.ForbiddenError("this is no recovery certificate")
        return self._unless_at_fault(f"recover {call}", user)


@dataclass(eq=False)
class MemorySession(OpenSession):
    """One session at a MemoryHub."""

    hub: MemoryHub
    cluster: ClusterName
    identity: ports.ClientIdentity
    beats: list[bool | None] = field(default_factory=list)
    reports: list[ClusterReport] = field(default_factory=list)
    addon_reports: list[tuple[AddOnName, tuple[Condition, ...]]] = field(default_factory=list)
    news: list[AgentEvent] = field(default_factory=list)
    epoch: int = 0
    farewells: list[tuple[HubId, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._drains: asyncio.Queue[ports.Drain] = asyncio.Queue()
        self._bundles: asyncio.Queue[bytes] = asyncio.Queue()

    @property
    def beat_interval(self) -> timedelta:
        return self.hub.beat_interval

    @property
    def hub_time_offset(self) -> timedelta:
        return self.hub.clock.now() - (self.hub.agent_clock or self.hub.clock).now()

    @property
    def over(self) -> bool:
        return self._end.done()

    async def beat(self, *, available: bool | None) -> None:
        self._check()
        self._note()
        self.beats.append(available)
        if self.hub.silent:
            await self._end
        self._check()
        self.hub.changed()

    async def report(self, report: ClusterReport) -> int:
        self._check()
        self._note()
        self.reports.append(report)
        self.hub.changed()
        return len(self.reports)

    async def report_addon(self, addon: AddOnName, conditions: Sequence[Condition], *, driver: str = "") -> int:
        self._check("report_addon")
        self._note()
        self.addon_reports.append((addon, tuple(conditions)))
        if driver:
            self.hub.note_driver(addon, driver)
        self.hub.changed()
        return len(self.addon_reports)

    async def send_event(self, news: AgentEvent) -> None:
        self._check("send_event")
        self.news.append(news)
        self.hub.changed()

    def _present(self) -> ports.Desired:
        return ports.Desired(
            self.hub.clusters[self.cluster].accepted,
            self.hub.lease_duration,
            self.hub.addons or (),
            addons_known=self.hub.addons is not None,
            deleting=self.hub.clusters[self.cluster].deleting,
            namespaces=self.hub.namespaces,
            renewal=self.hub.renewal_of(self.identity),
            second_agent=self.hub.second_agent,
        )

    async def drained(self) -> ports.Drain:
        return await self._drains.get()

    async def trust_bundle(self) -> bytes:
        return await self._bundles.get()

    async def trust_installed(self, trusted: Sequence[str]) -> None:
        self._check()
        self.hub.trusted[self.cluster] = tuple(trusted)
        self.hub.changed()

    def push(self, bundle: bytes) -> None:
        self._bundles.put_nowait(bundle)

    async def report_hub_list(self, hubs: Sequence[ListedHub]) -> None:
        self._check()
        self.hub.clusters[self.cluster].hubs = tuple(hubs)

    async def farewell(self, hub_id: HubId, epoch: int) -> None:
        if self.over:
            return
        self.farewells.append((hub_id, epoch))
        if hub_id:
            with suppress(ports.SessionEpochError):
                self.hub.heard(self.cluster, epoch, hub_id)
        self.end(ports.HubLostError("the agent has left"))

    def drain(self, target: HubId | None = None) -> None:
        self._drains.put_nowait(ports.Drain(timedelta(), "maintenance", target))

    def end(self, lost: ports.HubLostError) -> None:
        self.finish(lost)
        self.hub.changed()

    def _check(self, call: str = "") -> None:
        super()._check()
        if (fault := self.hub.faults.get(call)) is not None:
            raise fault

    def _note(self) -> None:
        """A write of this session. Raises StaleEpochError, and ends it, when a higher epoch was heard."""
        known = self.hub.clusters.get(self.cluster)
        if self.epoch and known is not None and self.epoch < known.epoch:
            stale = ports.SessionEpochError(f"the epoch {known.epoch} of this cluster is known", known.epoch)
            self.end(stale)
            raise stale
        if self.epoch:
            self.hub.accepted_writes.append((self.cluster, self.epoch))
