"""Registering with the bootstrap credential: from a bootstrap kubeconfig to a stored certificate."""

import structlog

from machinery.clock import OffsetClock
from machinery.errors import ConflictError, MusterError, UnauthorizedError, UnavailableError
from spoke.domain.credential import KUBECONFIG, Finding, validity
from spoke.domain.names import Names
from spoke.enrolment import Enrolment, Wanted, names_contents
from spoke.kubeconfigs import Connection
from spoke.options import Options, World
from spoke.ports import HubClient
from spoke.progress import Progress
from spoke.slot import Contents, Slot

log = structlog.get_logger(__name__)


class StartOverError(Exception):
    """What is known has changed: everything is to be looked at anew, at once."""


class Joining:
    """Keeps what a registration has reached from one attempt to the next, a certificate that is not stored yet above all."""

    def __init__(self, options: Options, world: World, owner: Slot, *, hub_clock: OffsetClock, progress: Progress) -> None:
        self._options = options
        self._world = world
        self._owner = owner
        self._hub_clock = hub_clock
        self._progress = progress
        self._present: Enrolment | None = None

    def prepare(self, bootstrap: Connection, names: Names, cluster_uid: str, pending: Slot, kept: Contents) -> Enrolment:
        """The registration under way, while it is for this hub and these names; else the one that `kept` tells of, or anew."""
        present = self._present
        if present is not None and present.wanted.names == names and present.hub == bootstrap.hub and not present.done:
            return present
        wanted = Wanted(
            names=names,
            cluster_uid=cluster_uid,
            subject=names.subject,
            duration=self._options.duration,
            ensure_cluster=True,
            endpoints=self._options.endpoints,
            annotations=self._options.annotations,
        )
        self._present = self.enrolment(wanted, bootstrap, pending)
        self._present.resume(kept)
        return self._present

    def enrolment(self, wanted: Wanted, connection: Connection, pending: Slot) -> Enrolment:
        """Obtains a certificate for the agent itself: the first one or a renewal."""
        extra = {KUBECONFIG: connection.kubeconfig, **names_contents(wanted.names)}
        return Enrolment(
            wanted, pending=pending, target=self._owner, extra=extra, mirror=self._world.directory, hub=connection.hub
        )

    async def join(self, bootstrap: Connection, enrolment: Enrolment, finding: Finding) -> Contents:
        """Obtains and stores the certificate; `finding` is why. Raises StartOverError when the hub's time takes that back."""
        client = self._world.dial(bootstrap.address, bootstrap.identity)
        try:
            if enrolment.issued is None:
                by_our_clock = self._hub_clock.offset is None
                await self._meet(client, bootstrap)
                if finding.about_time and by_our_clock:
                    raise StartOverError
            await enrolment.run(client, on_step=lambda state: self._progress.enter(state.value))
        except (UnauthorizedError, UnavailableError) as error:
            raise self._refused(bootstrap, error) from error
        finally:
            await client.close()
        return enrolment.credential

    async def _meet(self, client: HubClient, bootstrap: Connection) -> None:
        """Learns the hub's time, and that it is the hub that the kubeconfig names."""
        self._progress.enter("reaching the hub with the bootstrap credential")
        info = await client.info()
        self._hub_clock.learn(info.time)
        if info.hub_id and info.hub_id != bootstrap.hub_id:
            raise ConflictError(
                f"the hub at {bootstrap.address.target} has the id {info.hub_id}, but the bootstrap kubeconfig is for "
                f"{bootstrap.hub_id}: make a new one with hubctl create bootstrap-kubeconfig"
            )

    def _refused(self, bootstrap: Connection, error: MusterError) -> MusterError:
        """What to do, where the bootstrap credential is the reason or may be: TLS does not tell."""
        finding = validity(bootstrap.chain, self._hub_clock.now())
        if finding is None and not isinstance(error, UnauthorizedError):
            return error
        why = f"{error.message}; {finding.message}" if finding and finding.message not in error.message else error.message
        return UnauthorizedError(
            f"the bootstrap credential in {self._world.bootstrap.path} does not work ({why}): make a new one with "
            "hubctl create bootstrap-kubeconfig and replace the file, the agent goes on by itself"
        )
