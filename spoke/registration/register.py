"""Registers the agent at a hub with the bootstrap credential, or with the recovery certificate.

Recovery replaces a certificate that has expired, that the hub has lost, or whose CA the hub is retiring.
"""

import secrets
import uuid
from collections.abc import Iterable, Mapping
from datetime import timedelta

import structlog
from structlog.contextvars import bind_contextvars

from machinery import errors
from machinery.observability import tracing
from machinery.runtime.clock import OffsetClock
from spoke.bootstraps.listing import BootstrapListing
from spoke.credentials.kubeconfigs import HubConnection, recovery_connection, recovery_obstacle, stored_texts, view_stored
from spoke.credentials.slot import Contents, OwnedSlot, Slot, hub_slot
from spoke.credentials.trust_bundle import trust_in
from spoke.domain.credential import CredentialFinding, Flaw, validity
from spoke.domain.names import AgentIdentity, AgentNames, choose_names, fresh_agent_id
from spoke.observability.progress import AgentProgress
from spoke.options import AgentOptions, AgentPorts
from spoke.ports.cluster import CredentialDirectory
from spoke.ports.hub import HubClient
from spoke.registration.csr_flow import CSRFlow, WantedCertificate, names_contents, pends_for

RECOVERABLE = (Flaw.EXPIRED, Flaw.OUTLIVED, Flaw.UNRECORDED)
"""Flaws of a credential whose stored recovery certificate may still be usable."""

log = structlog.get_logger(__name__)


class Naming:
    def __init__(self, options: AgentOptions, directory: CredentialDirectory | None) -> None:
        self._options = options
        self._directory = directory
        self._names: AgentNames | None = None

    def choose(self, held: Contents, asked: Iterable[Contents], listing: BootstrapListing) -> AgentNames:
        """Choose the agent's names. `held`: content of the owner's secret; `asked`: that of slots in order of precedence."""
        fresh = (str(uuid.uuid4()), fresh_agent_id(secrets.randbits(64)))
        remembered = (str(self._names.cluster), str(self._names.agent)) if self._names else fresh
        mirrored: Mapping[str, bytes] = self._directory.read() if self._directory is not None else {}
        # If the bootstrap kubeconfig is bound to another cluster name, it overrides the name in a pending request.
        bound = (next((hub.connection.cluster_name for hub in listing.hubs if hub.connection.cluster_name), ""), "")
        places = [stored_texts(held), stored_texts(mirrored), bound, *map(stored_texts, asked)]
        cluster, agent = (next(filter(None, texts), "") for texts in zip(*places, strict=True))
        self._names = choose_names(
            options=(self._options.cluster_name, self._options.agent_id), stored=(cluster, agent), fresh=remembered
        )
        bind_contextvars(cluster=self._names.cluster)  # only for this agent's tasks, because a process may run many agents
        return self._names


class Registration:
    """The registration at a hub. It keeps its progress between attempts, for example a certificate that is not stored yet.

    If recovery certificate and bootstrap credential are both usable, attempts alternate. The certificate is stored only
    in the hub's slot.
    """

    def __init__(self, options: AgentOptions, ports: AgentPorts, *, hub_clock: OffsetClock, progress: AgentProgress) -> None:
        self._options = options
        self._ports = ports
        self._hub_clock = hub_clock
        self._progress = progress
        self._flow: CSRFlow | None = None
        self._failures = 0

    def route(
        self, contents: Contents, names: AgentNames, finding: CredentialFinding, bootstrap: HubConnection | None
    ) -> HubConnection | None:
        """Return the connection to try next; None if there is no usable credential.

        The recovery certificate comes first, because it may need no approval.
        """
        recovery = None
        if finding.flaw in RECOVERABLE:
            recovery = recovery_connection(contents, names, self._hub_clock.now(), self._options.reach)
        routes = [each for each in (recovery, bootstrap) if each is not None]
        return routes[self._failures % len(routes)] if routes else None

    async def obtain(
        self, route: HubConnection, agent: AgentIdentity, contents: Contents, finding: CredentialFinding
    ) -> Contents | None:
        """Obtain and store a certificate. Return the slot's content. `finding`: the flaw of the certificate in `contents`.

        Return None if the flaw depends on the clock and the hub's time was unknown. The caller checks the credential again.
        Raises MusterError.
        """
        recovers = route.identity.recovers
        why_not = recovery_obstacle(contents, self._options.reach) if finding.flaw in RECOVERABLE and not recovers else ""
        log.info(
            "registration.begins",
            because=finding.message,
            cluster=agent.cluster,
            agent=agent.agent,
            by="recovery certificate" if recovers else "bootstrap credential",
            **({"not_recovered": why_not} if why_not else {}),
        )
        slot = hub_slot(self._ports.secrets, route.hub_id)
        kept, stored = await slot.read(), view_stored(contents)
        if stored.chain and pends_for(kept, stored.chain[0].public_key):
            kept = {}  # the request is obsolete: its certificate is the one with the flaw
        flow = self._prepare(route, agent, slot, kept)
        self._failures += 1
        client = self._ports.dial(route.address, route.identity)
        self._progress.hub, self._progress.cluster = route.address.target, agent.cluster
        with tracing.span("recover" if recovers else "join", {"muster.cluster": agent.cluster}):
            try:
                if recovers:
                    self._progress.enter("coming back with the recovery certificate")
                elif not flow.issued and await self._meet(client, route) and finding.about_time:
                    self._failures -= 1  # this attempt did not fail
                    return None
                await flow.run(client, on_step=self._progress.enter)
            except errors.MusterError as error:
                explained = self._explain(route, error)
                if explained is error:
                    raise
                raise explained from error
            finally:
                await client.close()
        self._failures = 0
        return flow.credential

    def _prepare(self, route: HubConnection, agent: AgentIdentity, slot: Slot, kept: Contents) -> CSRFlow:
        """Return the flow for this hub and these names: that of the last attempt, a flow resumed from `kept`, or a new flow.

        A flow that already has its certificate continues with either credential.
        """
        present, ensure_cluster = self._flow, not route.identity.recovers
        if (
            present is not None
            and present.wanted.agent.names == agent.names
            and present.hub == route.hub
            and not present.is_done
        ) and (present.issued or present.wanted.ensure_cluster is ensure_cluster):
            return present
        options = self._options
        wanted = WantedCertificate(
            agent,
            agent.names.subject,
            duration=options.duration,
            ensure_cluster=ensure_cluster,
            endpoints=options.endpoints,
            annotations=options.annotations,
            labels=options.labels,
        )
        self._flow = _own_flow(wanted, route, slot)
        self._flow.resume(kept)
        return self._flow

    async def _meet(self, client: HubClient, bootstrap: HubConnection) -> bool:
        """Read the hub's time, check the hub's id, and attach an attestation token if the hub requires one.

        Return whether the hub's time was unknown before.
        """
        self._progress.enter("reaching the hub with the bootstrap credential")
        by_our_clock = self._hub_clock.offset is None
        info = await client.info()
        self._hub_clock.set_time(info.time)
        if info.hub_id and info.hub_id != bootstrap.hub_id:
            raise errors.ConflictError(
                f"the hub at {bootstrap.address.target} has the id {info.hub_id}, but the bootstrap kubeconfig is for "
                f"{bootstrap.hub_id}: make a new one with hubctl create bootstrap-kubeconfig"
            )
        if info.attestation_audience:
            if self._ports.attest is None:
                raise errors.InvalidError("the hub requires a token of this cluster, and this agent cannot get one")
            client.bring(await self._ports.attest.token(info.attestation_audience))
        return by_our_clock

    def _explain(self, route: HubConnection, error: errors.MusterError) -> errors.MusterError:
        """Return the error to raise. Add advice if the credential may be the cause, because TLS does not report this."""
        if route.identity.recovers:
            if not isinstance(
                error, errors.UnauthorizedError | errors.ForbiddenError | errors.NotFoundError | errors.AlreadyExistsError
            ):
                return error
            return errors.UnauthorizedError(f"the recovery certificate does not bring this agent back: {error.message}")
        finding = validity(route.chain, self._hub_clock.now())
        refused = isinstance(error, errors.UnauthorizedError) or error.denial_cause is errors.DenialCause.CLUSTER_REVOKED
        if not refused and not (isinstance(error, errors.UnavailableError) and finding):
            return error
        why = f"{error.message}; {finding.message}" if finding and finding.message not in error.message else error.message
        # The source of a kubeconfig in a secret already begins with "in".
        source = route.source if route.source.startswith("in ") else f"in {route.source}"
        return errors.UnauthorizedError(
            f"the bootstrap credential {source} does not work ({why}): make a new one with "
            "hubctl create bootstrap-kubeconfig and put it in its place, the agent then continues"
        )


def renewal(
    connection: HubConnection,
    agent: AgentIdentity,
    duration: timedelta | None,
    slot: Slot,
    *,
    owner: Slot | None = None,
    mirror: CredentialDirectory | None = None,
) -> CSRFlow:
    """Return the flow that obtains the next certificate with the present certificate. `slot`: the hub's slot.

    If `owner`, the owner's secret, is present, the certificate is also stored there and in `mirror`.
    """
    wanted = WantedCertificate(agent, agent.names.subject, duration)
    return _own_flow(wanted, connection, slot, OwnedSlot(slot, owner, connection.hub_id) if owner else None, mirror)


def _own_flow(
    wanted: WantedCertificate,
    connection: HubConnection,
    slot: Slot,
    target: Slot | None = None,
    mirror: CredentialDirectory | None = None,
) -> CSRFlow:
    """Return the flow for a certificate of the agent itself: the first certificate or a renewal."""

    def known_by(present: Contents) -> Mapping[str, bytes]:
        """A registration stores the CAs of its bootstrap kubeconfig; a renewal keeps the stored CAs."""
        return connection.trust if wanted.ensure_cluster else trust_in(present, connection)

    extra, hub = names_contents(wanted.agent.names), connection.hub
    return CSRFlow(wanted, pending=slot, target=target or slot, extra=extra, mirror=mirror, hub=hub, known_by=known_by)
