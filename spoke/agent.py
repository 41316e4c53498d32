"""The agent: names, a credential, a session; and whatever happens to any of them is a transition in here.

The outer loop looks at what is stored, registers where that is not good for a session, and stays with the hub until something
is to be looked at anew. It ends only when it is cancelled, and with InvalidError when its bootstrap kubeconfig cannot be used
at the very first look. No hub that is away, silent, or refuses ends it.
"""

import asyncio
import secrets
import uuid
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TypeVar

import structlog
from structlog.contextvars import bind_contextvars

from machinery.backoff import Backoff
from machinery.clock import OffsetClock
from machinery.errors import InvalidError, MusterError
from spoke.addoncredentials import Registered
from spoke.bootstraps import BootstrapChangedError, BootstrapWatch
from spoke.controllers.addon_registration import AddOnCertificates, Certificates
from spoke.domain.credential import Finding, Flaw, judge, validity
from spoke.domain.names import Names, choose_names, fresh_agent_id
from spoke.enrolment import Enrolment, RequestDeniedError, Wanted, pends_for
from spoke.health import AvailabilityWatch
from spoke.joining import Joining, StartOverError
from spoke.kubeconfigs import Connection, stored_connection, stored_texts, view_stored
from spoke.layout import agreed
from spoke.link import Link, Surroundings
from spoke.mirror import AGAIN, PatientDirectory
from spoke.options import Options, Pause, World
from spoke.ports import Capability, Greeting, HubLostError, Loss
from spoke.progress import Progress
from spoke.session import SessionRun
from spoke.slot import OWNER_SECRET, Contents, Slot, hub_slot

T = TypeVar("T")

BOOTSTRAP_LOOK = timedelta(seconds=2)

log = structlog.get_logger(__name__)


class FlawError(MusterError):
    """The credential in use is no good any more: register again."""

    reason = "Unauthorized"

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


class SpokeAgent:
    """One agent of one cluster; any number of them live in a process."""

    def __init__(self, options: Options, world: World, progress: Progress | None = None) -> None:
        self._options = options
        self._mirror = PatientDirectory(world.directory) if world.directory is not None else None
        self._world = world = replace(world, directory=self._mirror)
        self._hub_clock = OffsetClock(world.clock)
        self._owner = Slot(world.secrets, OWNER_SECRET)
        self._watch = AvailabilityWatch(world.spoke, world.clock)
        self._doubt: Finding | None = None
        """Why the stored credential is passed over once: registering is tried, then the credential again."""
        self._certificates = Certificates()
        self._names: Names | None = None
        self._cluster_uid = ""
        self._bootstrap = BootstrapWatch(world.bootstrap)
        self._looked_once = False
        self.progress = progress or Progress(world.clock)
        self._joining = Joining(options, world, self._owner, hub_clock=self._hub_clock, progress=self.progress)
        self._surroundings = Surroundings(
            spoke=world.spoke,
            management=world.management,
            watch=self._watch,
            claims=options.claims,
            endpoints=options.endpoints,
            resync=options.resync,
            clock=world.clock,
            hub_clock=self._hub_clock,
            timetable=world.timetable,
            progress=self.progress,
            random=world.random,
            reach=options.reach,
            annotations=options.annotations,
            addons=options.addons,
        )

    async def run(self) -> None:
        """Until cancelled. Raises InvalidError at once when there is neither a usable bootstrap kubeconfig nor a credential."""
        self._world.timetable.every(BOOTSTRAP_LOOK, self._bootstrap.look, name="bootstrap-kubeconfig")
        if self._mirror is not None:
            self._world.timetable.every(AGAIN, self._mirror.again, name="mirror")
        retry = self._backoff(self._options.pauses.retry)
        denied = self._backoff(self._options.pauses.denied)
        try:
            async with self._bootstrap.watching():
                while True:
                    delay = await self._attempt(retry, denied)
                    await self._bootstrap.rest(delay)
        finally:
            self._world.timetable.drop("bootstrap-kubeconfig")
            self._world.timetable.drop("mirror")

    async def _attempt(self, retry: Backoff, denied: Backoff) -> timedelta:
        """One round; returns how long to rest before the next."""
        try:
            await self._round(retry)
        except BootstrapChangedError:
            log.info("bootstrap.replaced", source=self._world.bootstrap.source)
            return timedelta()
        except StartOverError:
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
        self._bootstrap.settle()
        contents, self._cluster_uid, _ = await asyncio.gather(self._owner.read(), self._uid(), self._watch.look())
        bootstrap, unreadable = self._read_bootstrap()
        pending = self._pending_slot(bootstrap) if bootstrap else None
        kept = await pending.read() if pending else {}
        if pending is not None and bootstrap is not None:
            contents = await agreed(self._owner, pending, bootstrap.hub_id, held=contents, kept=kept)
        names = self._choose_names(contents, kept, bootstrap)
        finding = self._judge(contents, bootstrap, names)
        if finding is not None:
            way = self._joining.way(contents, names, finding, bootstrap)
            if way is None:
                raise unreadable or AssertionError
            self._looked_once = True
            joining = self._joining.obtain(way, names, self._cluster_uid, contents, finding)
            contents, kept = await self._bootstrap.unless_changed(joining), {}
        self._looked_once = True
        connection = stored_connection(contents, self._options.reach)
        if self._world.directory is not None and finding is None:
            self._world.directory.replace(contents)
        await self._serve(connection, names, kept, retry)

    async def _uid(self) -> str:
        return self._cluster_uid or await self._world.spoke.uid()

    def _read_bootstrap(self) -> tuple[Connection | None, InvalidError | None]:
        listing = self._bootstrap.listing
        return (listing.hubs[0].connection if listing.hubs else None), listing.trouble

    def _choose_names(self, contents: Contents, kept: Contents, bootstrap: Connection | None) -> Names:
        fresh = (str(uuid.uuid4()), fresh_agent_id(secrets.randbits(64)))
        remembered = (str(self._names.cluster), str(self._names.agent)) if self._names else fresh
        mirrored = self._world.directory.read() if self._world.directory is not None else {}
        held, mirror_texts, asked = (stored_texts(place) for place in (contents, mirrored, kept))
        # what was merely asked for is given up when the operator hands in a bootstrap kubeconfig for another name
        bound = (bootstrap.cluster_name if bootstrap is not None else "", "")
        places = [held, mirror_texts, bound, asked]
        cluster, agent = (next(filter(None, texts), "") for texts in zip(*places, strict=True))
        self._names = choose_names(
            options=(self._options.cluster_name, self._options.agent_id), stored=(cluster, agent), fresh=remembered
        )
        bind_contextvars(cluster=self._names.cluster)  # of this agent's tasks: a process may hold a fleet
        return self._names

    def _judge(self, contents: Contents, bootstrap: Connection | None, names: Names) -> Finding | None:
        stored = view_stored(contents)
        finding = judge(stored, bootstrap.hub if bootstrap else None, names, self._hub_clock.now())
        doubt, self._doubt = self._doubt, None
        if finding is not None and finding.about_time and self._hub_clock.offset is None:
            return doubt  # our own clock may be wrong: the hub is asked with it before it is given up
        return finding or doubt

    def _pending_slot(self, connection: Connection) -> Slot:
        return hub_slot(self._world.secrets, connection.hub_id)

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
                    link = await self._bootstrap.unless_changed(self._open(connection))
                reconnect.reset()
                retry.reset()
                if link.connection.certificate.serial != connection.certificate.serial:
                    previous, connection = connection, link.connection
                    rotation = await self._rotation(connection, names, pending, {})
                session = self._session(link, rotation, names)
                link = await self._bootstrap.unless_changed(session, leave=partial(self._other_hub, connection))
            except HubLostError as lost:
                link = None
                if lost.loss is Loss.UNAUTHENTICATED and previous is not None:
                    log.warning("certificate.fallback", why=lost.message, next="the certificate before")
                    connection, previous = previous, None
                    continue
                self._judge_loss(connection, lost)
                slow = lost.loss in (Loss.REFUSED, Loss.SUPERSEDED)
                delay = (refused if slow else reconnect).next()
                await self._bootstrap.rest(self._troubled(lost, max(delay, lost.retry_after or delay), "reconnecting"))
                if self._bootstrap.changed:
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
        enrolment = self._joining.enrolment(wanted, connection, pending)
        if pends_for(kept, connection.certificate.public_key):
            await pending.forget()  # the run before ended between storing the certificate and forgetting its request
        else:
            enrolment.resume(kept)
        return enrolment

    async def _open(self, connection: Connection) -> Link:
        self.progress.enter("opening a session with the hub")
        client = self._world.dial(connection.address, connection.identity)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(client.close)
            try:
                session = await stack.enter_async_context(client.session(Greeting(self._cluster_uid)))
            except HubLostError:
                raise
            except MusterError as error:
                raise HubLostError(error.message) from error
            stack.enter_context(self.progress.connected(arbitrated=Capability.ONE_SESSION in client.capabilities))
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
                hub_id=link.connection.hub_id,
                care=self._options.addons,
            )
            return AddOnCertificates(link.client, link.session, registered, self._certificates, self._hub_clock)

        try:
            run = SessionRun(link, self._surroundings, open_link=self._open, rotation=rotation, registration=registrar)
            return await run.run()
        finally:
            await link.close()

    def _other_hub(self, connection: Connection) -> bool:
        """A new credential for the same hub is no reason to leave it."""
        self._bootstrap.settle()
        bootstrap, _ = self._read_bootstrap()
        return bootstrap is not None and bool(connection.hub.difference(bootstrap.hub))

    def _backoff(self, pause: Pause) -> Backoff:
        return pause.backoff(self._world.random)
