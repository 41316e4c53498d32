"""The agent: names, a credential, a session; and whatever happens to any of them is a transition in here.

The outer loop looks at what is stored, registers where that is not good for a session, and stays with the hub until something
is to be looked at anew. It ends only when it is cancelled, and with InvalidError when its bootstrap kubeconfig cannot be used
at the very first look. No hub that is away, silent, or refuses ends it.
"""

import asyncio
import secrets
import uuid
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any, TypeVar

import structlog

from machinery.backoff import Backoff
from machinery.clock import Clock, OffsetClock
from machinery.errors import ConflictError, InvalidError, MusterError, UnauthorizedError
from machinery.scheduler import Timetable
from spoke.controllers.addon_registration import AddOnCertificates, Certificates, Registered
from spoke.domain.addon import AddOn
from spoke.domain.credential import KUBECONFIG, Finding, Flaw, judge, validity
from spoke.domain.names import Names, choose_names, fresh_agent_id
from spoke.domain.report import ExternalEndpoint
from spoke.domain.status import ClaimRules
from spoke.enrolment import Enrolment, RequestDeniedError, Wanted, mirror, names_contents, pends_for
from spoke.health import AvailabilityWatch
from spoke.kubeconfigs import BootstrapFile, Connection, stored_connection, stored_texts, view_stored
from spoke.ports import (
    Cluster,
    CredentialDirectory,
    Dial,
    HubClient,
    HubLostError,
    Loss,
    Secrets,
)
from spoke.progress import Progress
from spoke.session import Link, SessionRun, Surroundings
from spoke.slot import Contents, Slot

T = TypeVar("T")

OWNER_SECRET = "hub-kubeconfig-secret"  # noqa: S105 - the name of a secret
BOOTSTRAP_LOOK = timedelta(seconds=1)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Pause:
    """How long to rest after a failure: doubled from `first` to `longest`, each drawn down by up to `jitter`."""

    first: timedelta
    longest: timedelta
    jitter: float = 1.0

    def backoff(self, random: Random) -> Backoff:
        return Backoff(self.first, self.longest, jitter=self.jitter, random=random)


@dataclass(frozen=True, slots=True)
class Pauses:
    """Fully jittered where a fleet would come at once, halfway where the hub said no."""

    retry: Pause = Pause(timedelta(milliseconds=500), timedelta(seconds=30))
    denied: Pause = Pause(timedelta(seconds=10), timedelta(minutes=10), jitter=0.5)
    refused: Pause = Pause(timedelta(seconds=5), timedelta(minutes=1), jitter=0.5)


@dataclass(frozen=True, slots=True)
class Options:
    """What the agent is told about itself."""

    cluster_name: str = ""
    agent_id: str = ""
    duration: timedelta | None = None
    endpoints: tuple[ExternalEndpoint, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    claims: ClaimRules = field(default_factory=ClaimRules)
    resync: timedelta = timedelta(minutes=1)
    pauses: Pauses = Pauses()


@dataclass(frozen=True, slots=True)
class World:
    """What the agent works with."""

    bootstrap: BootstrapFile
    dial: Dial
    spoke: Cluster
    management: Cluster
    secrets: Secrets
    addon_secrets: Callable[[AddOn], Secrets]
    directory: CredentialDirectory | None
    clock: Clock
    timetable: Timetable
    random: Random


class StartOverError(Exception):
    """What is known has changed: everything is to be looked at anew, at once."""


class BootstrapChangedError(StartOverError):
    """Another bootstrap kubeconfig lies on the disk."""


class FlawError(MusterError):
    """The credential in use is no good any more: register again."""

    reason = "Unauthorized"

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


class SpokeAgent:
    """One agent of one cluster; any number of them live in a process."""

    def __init__(self, options: Options, world: World) -> None:
        self._options = options
        self._world = world
        self._hub_clock = OffsetClock(world.clock)
        self._owner = Slot(world.secrets, OWNER_SECRET)
        self._watch = AvailabilityWatch(world.spoke, world.clock)
        self._doubt: Finding | None = None
        """Why the stored credential is passed over once: registering is tried, then the credential again."""
        self._enrolment: Enrolment | None = None
        self._certificates = Certificates()
        self._names: Names | None = None
        self._cluster_uid = ""
        self._bootstrap_digest = ""
        self._bootstrap_changed = asyncio.Event()
        self._looked_once = False
        self.progress = Progress(world.clock)
        self._surroundings = Surroundings(
            spoke=world.spoke,
            management=world.management,
            addon_secrets=world.addon_secrets,
            watch=self._watch,
            claims=options.claims,
            endpoints=options.endpoints,
            resync=options.resync,
            clock=world.clock,
            hub_clock=self._hub_clock,
            timetable=world.timetable,
            progress=self.progress,
            random=world.random,
        )

    async def run(self) -> None:
        """Until cancelled. Raises InvalidError at once when there is neither a usable bootstrap kubeconfig nor a credential."""
        self._world.timetable.every(BOOTSTRAP_LOOK, self._look_at_bootstrap, name="bootstrap-kubeconfig")
        retry = self._backoff(self._options.pauses.retry)
        denied = self._backoff(self._options.pauses.denied)
        try:
            while True:
                delay = await self._attempt(retry, denied)
                await self._rest(delay)
        finally:
            self._world.timetable.drop("bootstrap-kubeconfig")

    async def _attempt(self, retry: Backoff, denied: Backoff) -> timedelta:
        """One round; returns how long to rest before the next."""
        try:
            await self._round(retry)
        except StartOverError as change:
            if isinstance(change, BootstrapChangedError):
                log.info("bootstrap.replaced", file=str(self._world.bootstrap.path))
            return timedelta()
        except RequestDeniedError as error:
            return self._troubled(error, denied.next(), "submitting a new request")
        except MusterError as error:
            if isinstance(error, InvalidError) and not self._looked_once:
                raise
            delay = retry.next()
            following = "registering again" if isinstance(error, FlawError) else "trying again"
            return self._troubled(error, max(delay, error.retry_after or delay), following)
        except Exception:
            # A defect of ours must not take the agent away from its hub for good.
            delay = retry.next()
            log.exception("agent.failed", step=self.progress.step, in_seconds=round(delay.total_seconds(), 1))
            return delay
        raise AssertionError  # a round ends with an error only

    def _troubled(self, error: MusterError, delay: timedelta, following: str) -> timedelta:
        self.progress.fail(error.message)
        log.warning(
            "agent.trouble",
            step=self.progress.step,
            error=error.message,
            next=following,
            in_seconds=round(delay.total_seconds(), 1),
        )
        return delay

    async def _round(self, retry: Backoff) -> None:
        """From what is stored to a session, and the session until it is no more."""
        self.progress.enter("reading the stored credential")
        self._bootstrap_changed.clear()
        self._bootstrap_digest = self._world.bootstrap.digest()
        contents, self._cluster_uid, _ = await asyncio.gather(self._owner.read(), self._uid(), self._watch.look())
        bootstrap, unreadable = self._read_bootstrap()
        pending = self._pending_slot(bootstrap) if bootstrap else None
        kept = await pending.read() if pending else {}
        names = self._choose_names(contents, kept, bootstrap)
        finding = self._judge(contents, bootstrap, names)
        if finding is not None:
            if bootstrap is None or pending is None:
                raise unreadable or AssertionError
            self._looked_once = True
            log.info("registration.begins", because=finding.message, cluster=names.cluster, agent=names.agent)
            stored = view_stored(contents)
            if stored.chain and pends_for(kept, stored.chain[0].public_key):
                kept = {}  # spent: it led to the very certificate that is no good
            contents = await self._register(bootstrap, names, pending, kept, finding)
            kept = {}
        self._looked_once = True
        connection = stored_connection(contents)
        if self._world.directory is not None and finding is None:
            mirror(self._world.directory, contents)
        await self._serve(connection, names, kept, retry)

    async def _uid(self) -> str:
        return self._cluster_uid or await self._world.spoke.uid()

    def _read_bootstrap(self) -> tuple[Connection | None, InvalidError | None]:
        try:
            return self._world.bootstrap.read(), None
        except InvalidError as error:
            if self._looked_once:
                log.warning("bootstrap.unusable", error=error.message)
            return None, error

    def _choose_names(self, contents: Contents, kept: Contents, bootstrap: Connection | None) -> Names:
        fresh = (str(uuid.uuid4()), fresh_agent_id(secrets.randbits(64)))
        remembered = (str(self._names.cluster), str(self._names.agent)) if self._names else fresh
        if bootstrap is not None and bootstrap.cluster_name:
            remembered = (bootstrap.cluster_name, remembered[1])
        stored = tuple(first or second for first, second in zip(stored_texts(contents), stored_texts(kept), strict=True))
        self._names = choose_names(
            options=(self._options.cluster_name, self._options.agent_id), stored=(stored[0], stored[1]), fresh=remembered
        )
        return self._names

    def _judge(self, contents: Contents, bootstrap: Connection | None, names: Names) -> Finding | None:
        stored = view_stored(contents)
        finding = judge(stored, bootstrap.hub if bootstrap else None, names, self._hub_clock.now())
        doubt, self._doubt = self._doubt, None
        if finding is not None and finding.about_time and self._hub_clock.offset is None:
            return doubt  # our own clock may be wrong: the hub is asked with it before it is given up
        return finding or doubt

    def _pending_slot(self, connection: Connection) -> Slot:
        return Slot(self._world.secrets, f"{OWNER_SECRET}-{connection.hub_id[:8]}")

    async def _register(self, bootstrap: Connection, names: Names, pending: Slot, kept: Contents, finding: Finding) -> Contents:
        """Obtains and stores a certificate with the bootstrap credential."""
        enrolment = self._enrolment_for(bootstrap, names, pending, kept)
        client = self._world.dial(bootstrap.address, bootstrap.identity)
        try:
            return await self._unless_bootstrap_changes(self._enrol(client, bootstrap, enrolment, finding))
        except UnauthorizedError as error:
            raise UnauthorizedError(self._bootstrap_refused(bootstrap, error.message)) from error
        finally:
            await client.close()

    def _enrolment_for(self, bootstrap: Connection, names: Names, pending: Slot, kept: Contents) -> Enrolment:
        """The one under way, while it is for this hub and these names: it may hold a certificate that is not stored yet."""
        present = self._enrolment
        if present is not None and present.wanted.names == names and present.hub == bootstrap.hub and not present.done:
            return present
        wanted = Wanted(
            names=names,
            cluster_uid=self._cluster_uid,
            subject=names.subject,
            duration=self._options.duration,
            ensure_cluster=True,
            endpoints=self._options.endpoints,
            annotations=self._options.annotations,
        )
        self._enrolment = self._new_enrolment(wanted, bootstrap, pending)
        self._enrolment.resume(kept)
        return self._enrolment

    def _new_enrolment(self, wanted: Wanted, connection: Connection, pending: Slot) -> Enrolment:
        extra = {KUBECONFIG: connection.kubeconfig, **names_contents(wanted.names)}
        return Enrolment(
            wanted, pending=pending, target=self._owner, extra=extra, mirror=self._world.directory, hub=connection.hub
        )

    async def _enrol(self, client: HubClient, bootstrap: Connection, enrolment: Enrolment, finding: Finding) -> Contents:
        if enrolment.issued is None:
            by_our_clock = self._hub_clock.offset is None
            await self._meet(client, bootstrap)
            if finding.about_time and by_our_clock:
                raise StartOverError  # the finding was by our clock, now we know the hub's
        await enrolment.run(client, on_step=lambda state: self.progress.enter(state.value))
        return enrolment.credential

    async def _meet(self, client: HubClient, bootstrap: Connection) -> None:
        """Learns the hub's time, and that it is the hub that the kubeconfig names."""
        self.progress.enter("reaching the hub with the bootstrap credential")
        info = await client.info()
        self._hub_clock.learn(info.time)
        if info.hub_id != bootstrap.hub_id:
            raise ConflictError(
                f"the hub at {bootstrap.address.target} has the id {info.hub_id}, but the bootstrap kubeconfig is for "
                f"{bootstrap.hub_id}: make a new one with hubctl create bootstrap-kubeconfig"
            )

    def _bootstrap_refused(self, bootstrap: Connection, said: str) -> str:
        finding = validity(bootstrap.chain, self._hub_clock.now())
        why = finding.message if finding else said
        return (
            f"the hub does not take the bootstrap credential in {self._world.bootstrap.path} ({why}): make a new one with "
            "hubctl create bootstrap-kubeconfig and replace the file, the agent goes on by itself"
        )

    async def _serve(self, connection: Connection, names: Names, kept: Contents, retry: Backoff) -> None:
        """Session after session; raises what the outer loop has to decide about."""
        pending = self._pending_slot(connection)
        previous: Connection | None = None
        rotation = await self._rotation(connection, names, pending, kept)
        reconnect = self._backoff(self._options.pauses.retry)
        refused = self._backoff(self._options.pauses.refused)
        link: Link | None = None
        while True:
            try:
                if link is None:
                    link = await self._unless_bootstrap_changes(self._open(connection))
                reconnect.reset()
                retry.reset()
                if link.connection.certificate.serial != connection.certificate.serial:
                    previous, connection = connection, link.connection
                    rotation = await self._rotation(connection, names, pending, {})
                session = self._session(link, rotation, names)
                link = await self._unless_bootstrap_changes(session, leave=partial(self._other_hub, connection))
            except HubLostError as lost:
                link = None
                if lost.loss is Loss.UNAUTHENTICATED and previous is not None:
                    log.warning("certificate.fallback", why=lost.message, next="the certificate before")
                    connection, previous = previous, None
                    continue
                self._judge_loss(connection, lost)
                slow = lost.loss in (Loss.REFUSED, Loss.SUPERSEDED)
                delay = (refused if slow else reconnect).next()
                await self._rest(self._troubled(lost, max(delay, lost.retry_after or delay), "reconnecting"))
                if self._bootstrap_changed.is_set():
                    raise BootstrapChangedError from lost

    def _judge_loss(self, connection: Connection, lost: HubLostError) -> None:
        """Raises FlawError when the loss, or the hub's time, says that this credential is spent."""
        finding = validity(connection.chain, self._hub_clock.now())
        if lost.loss is Loss.UNAUTHENTICATED:
            finding = Finding(Flaw.REJECTED, f"the hub does not take the stored credential: {lost.message}")
        elif lost.loss is Loss.FORGOTTEN:
            finding = Finding(Flaw.REJECTED, f"the hub does not know this cluster: {lost.message}")
        elif finding is None or finding.flaw is not Flaw.EXPIRED:
            return
        self._doubt = finding
        raise FlawError(finding) from lost

    async def _rotation(self, connection: Connection, names: Names, pending: Slot, kept: Contents) -> Enrolment:
        """The renewal of this certificate, resumed where one is pending."""
        wanted = Wanted(names=names, cluster_uid=self._cluster_uid, subject=names.subject, duration=self._options.duration)
        enrolment = self._new_enrolment(wanted, connection, pending)
        if pends_for(kept, connection.certificate.public_key):
            await pending.delete()  # the run before ended between storing the certificate and forgetting its request
        else:
            enrolment.resume(kept)
        return enrolment

    async def _open(self, connection: Connection) -> Link:
        self.progress.enter("opening a session with the hub")
        client = self._world.dial(connection.address, connection.identity)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(client.close)
            try:
                session = await stack.enter_async_context(client.session(self._cluster_uid))
            except HubLostError:
                raise
            except MusterError as error:
                raise HubLostError(error.message) from error
            self._hub_clock.learn(self._world.clock.now() + session.hub_time_offset)
            log.info("session.opened", hub=connection.address.target)
            return Link(connection, client, session, stack.pop_all().aclose)
        raise AssertionError

    async def _session(self, link: Link, rotation: Enrolment, names: Names) -> Link:
        def registrar(link: Link) -> AddOnCertificates:
            registered = Registered(
                names=names,
                cluster_uid=self._cluster_uid,
                kubeconfig=link.connection.kubeconfig,
                secrets=self._world.addon_secrets,
                pending=lambda secret: Slot(self._world.secrets, f"{secret}-{link.connection.hub_id[:8]}"),
                duration=self._options.duration,
            )
            return AddOnCertificates(link.client, link.session, registered, self._certificates, self._hub_clock)

        try:
            run = SessionRun(link, self._surroundings, open_link=self._open, rotation=rotation, registration=registrar)
            return await run.run()
        finally:
            await link.close()

    def _other_hub(self, connection: Connection) -> bool:
        """A new credential for the same hub is no reason to leave it."""
        self._bootstrap_changed.clear()
        self._bootstrap_digest = self._world.bootstrap.digest()
        bootstrap, _ = self._read_bootstrap()
        return bootstrap is not None and bool(connection.hub.difference(bootstrap.hub))

    async def _unless_bootstrap_changes(self, work: Coroutine[Any, Any, T], *, leave: Callable[[], bool] = lambda: True) -> T:
        """Does `work`. Raises BootstrapChangedError as soon as the file is another and `leave` says that this matters."""
        doing = asyncio.create_task(work, name="until the bootstrap kubeconfig changes")
        try:
            while True:
                change = asyncio.create_task(self._bootstrap_changed.wait(), name="bootstrap change")
                try:
                    await asyncio.wait((doing, change), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    await _ended(change)
                if doing.done():
                    return doing.result()
                if leave():
                    raise BootstrapChangedError
        finally:
            await _ended(doing)

    def _look_at_bootstrap(self) -> None:
        if self._world.bootstrap.digest() != self._bootstrap_digest:
            self._bootstrap_changed.set()

    async def _rest(self, delay: timedelta) -> None:
        """Waits, unless the bootstrap kubeconfig is replaced meanwhile."""
        try:
            async with asyncio.timeout(delay.total_seconds()):
                await self._bootstrap_changed.wait()
        except TimeoutError:
            return

    def _backoff(self, pause: Pause) -> Backoff:
        return pause.backoff(self._world.random)


async def _ended(task: asyncio.Task[Any]) -> None:
    """Cancels it where it still runs, and waits."""
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
