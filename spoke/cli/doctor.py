"""`spoke doctor`: checks the path from this cluster to its hub step by step and prints advice for the first failure.

It only reads: it opens no session, requests no certificate and writes nothing, so it can run beside a running agent.
The agent's own view comes last.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from urllib.parse import urlsplit

from machinery.election import Lock
from machinery.errors import ForbiddenError, InvalidError, MusterError, NotFoundError, UnauthorizedError
from machinery.identity import ClusterName, parse_agent_user
from machinery.meta.timestamps import format_time
from machinery.runtime.clock import Clock
from spoke.bootstraps import Bootstraps
from spoke.cli.findings import NEW_BOOTSTRAP, DoctorStep, accepted, advice_on, forbidden, met_hub, stored_credential, words_of
from spoke.cli.network import PATIENCE, Network, reachable
from spoke.credentials.kubeconfigs import (
    HOWEVER,
    HubConnection,
    recovery_connection,
    recovery_obstacle,
    stored_connection,
    stored_texts,
    view_stored,
)
from spoke.credentials.owner import owner_of
from spoke.credentials.slot import OWNER_SECRET, Contents, credential_of, hub_slot
from spoke.domain.credential import CERTIFICATE, LEFT, CredentialFinding, Flaw, judge, validity
from spoke.domain.names import choose_names
from spoke.domain.route import Reach, shown_proxy
from spoke.ports.cluster import Cluster, Secrets
from spoke.ports.hub import Dial, HubAcceptance, HubAddress

HTTPS = 443
READY = "ok"
"""The state that an agent reports while its hub acknowledges its beats (`spoke.observability.progress`)."""
SEVERAL = 2
_RIGHTS = "give the agent get, create and update on secrets in its namespace, and check --component-namespace"
_GRANT = "grant them to the user of --kubeconfig (of --spoke-kubeconfig, for the managed cluster) by a Role, as the chart does"
_REGISTERS = "the agent registers again with the bootstrap kubeconfig"
_DNS = "check the address in the kubeconfig and this machine's DNS"
_TCP = "check that the hub runs, and firewalls, load balancers and network policies between here and there"
_RUN_THERE = "kubectl exec deploy/spoke -- spoke doctor"
_HUB = "follow what it says; the hub's log has its side of it"


@dataclass(frozen=True, slots=True)
class Patient:
    """The dependencies of a Doctor."""

    bootstrap: Bootstraps
    management: Cluster
    secrets: Secrets
    dial: Dial
    clock: Clock
    network: Network
    names: tuple[str, str] = ("", "")
    """Cluster name and agent id from the settings."""
    reach: Reach = HOWEVER
    probes: str = ""
    """Address of the agent's probes; empty or with port 0 when no agent with these settings was found on this machine."""
    lock: Lock | None = None
    """The agent's Lease; None when the agent runs without leader election."""
    namespace: str = ""
    """Namespace of the agent's secrets and Lease."""
    missing: Callable[[], Awaitable[Sequence[object]]] | None = None
    """Queries both clusters for permissions that the agent's users lack. Raises MusterError, InvalidError."""


class Doctor:
    """One run of all checks. `steps` yields the results in order, up to a failure that makes the rest pointless."""

    def __init__(self, patient: Patient) -> None:
        self._patient = patient

    async def steps(self) -> AsyncGenerator[DoctorStep, None]:
        yield (step := await self._cluster())
        if step.ok:
            if (missing := await self._namespace()) is not None:
                yield missing
            if self._patient.missing is not None:
                yield await self._permissions(self._patient.missing)
            async for look in self._hubs():
                yield look
        yield await self._agent()

    async def _namespace(self) -> DoctorStep | None:
        """The failed check of the agent's namespace; None when the namespace exists."""
        name = self._patient.namespace
        try:
            if not name or await self._patient.management.namespace_exists(name):
                return None
        except MusterError as error:
            return DoctorStep("namespace", ok=False, said=f'"{name}": {error.message}', advice=_RIGHTS)
        advice = f"kubectl create namespace {name}, or let the agent create it; check --component-namespace"
        return DoctorStep("namespace", ok=False, said=f'there is no namespace "{name}"', advice=advice)

    async def _permissions(self, ask: Callable[[], Awaitable[Sequence[object]]]) -> DoctorStep:
        name = "permissions"
        try:
            missing = await ask()
        except (MusterError, InvalidError) as error:
            return DoctorStep(name, ok=False, said=f"they cannot be looked at: {error.message}", advice=_GRANT)
        if missing:
            return DoctorStep(name, ok=False, said=f"missing: {'; '.join(map(str, missing))}", advice=_GRANT)
        return DoctorStep(name, ok=True, said="the agent has all that it needs")

    async def _cluster(self) -> DoctorStep:
        name = "this cluster"
        try:
            version = await self._patient.management.version()
        except MusterError as error:
            advice = "check --kubeconfig, or that the pod's service account reaches the API server"
            return DoctorStep(name, ok=False, said=f"its API server does not answer: {error.message}", advice=advice)
        return DoctorStep(name, ok=True, said=f"its API server answers, {version}")

    async def _hubs(self) -> AsyncGenerator[DoctorStep, None]:
        """Check each hub of the list under its name and with its own credential, whether or not the one before has failed."""
        bootstraps = self._patient.bootstrap
        await bootstraps.load()
        listing = bootstraps.look()
        try:
            contents: Contents | None = (await self._patient.secrets.read(OWNER_SECRET)).contents
        except (MusterError, InvalidError) as error:
            yield DoctorStep("stored credential", ok=False, said=f'secret "{OWNER_SECRET}": {error.message}', advice=_RIGHTS)
            contents = None
        if len(bootstraps.sources) < SEVERAL:
            async for look in self._walked(*self._bootstrap(bootstraps.first), contents):
                yield look
            return
        for trouble in listing.troubles:
            yield DoctorStep("list of hubs", ok=False, said=trouble.message, advice=NEW_BOOTSTRAP)
        owner = owner_of(contents or {})
        for hub in listing.hubs:
            mine = hub.hub_id == owner
            kept = contents if mine else credential_of(await hub_slot(self._patient.secrets, hub.hub_id).read())
            async for look in self._walked(*self._bootstrap(partial(attrgetter("connection"), hub)), kept):
                yield replace(look, name=f"{hub.name}{' (owner)' if mine else ''}: {look.name}")
        if owner is not None and listing.get(owner) is None:
            said = f"hub {owner}, which holds the session, is on it no more" if listing.hubs else "it is empty"
            yield DoctorStep(
                "list of hubs", ok=not listing.hubs, said=said, advice="the agent goes to a hub of its list by itself"
            )

    async def _walked(
        self, bootstrap: HubConnection | None, given: DoctorStep, contents: Contents | None
    ) -> AsyncGenerator[DoctorStep, None]:
        connection, looks = self._credentials(bootstrap, given, contents)
        for look in looks:
            yield look
        if connection is not None:
            async for look in self._way(connection):
                yield look

    def _credentials(
        self, bootstrap: HubConnection | None, given: DoctorStep, contents: Contents | None
    ) -> tuple[HubConnection | None, list[DoctorStep]]:
        """The credential for the following checks; None when none can work. `contents` is None when unreadable."""
        if contents is None:
            return bootstrap, [given]
        finding = self._judge(contents, bootstrap)
        if finding is None:
            connection = stored_connection(contents, self._patient.reach)
            return connection, [stored_credential(contents, connection)]
        recovery = self._recovery(contents, finding)
        if finding.flaw is Flaw.ABSENT or recovery is None:
            why = recovery_obstacle(contents, self._patient.reach) if finding.flaw is Flaw.EXPIRED else ""
            said = f"{finding.message}; {why}" if why else finding.message
            held = DoctorStep("stored credential", ok=finding.flaw is Flaw.ABSENT, said=said, advice=_REGISTERS)
            return (bootstrap if given.ok else None), [held, given]
        held = DoctorStep("stored credential", ok=True, said=f"{finding.message}; its recovery certificate brings it back")
        return recovery, [held]

    def _judge(self, contents: Mapping[str, bytes], bootstrap: HubConnection | None) -> CredentialFinding | None:
        stored, held = view_stored(contents), stored_texts(contents)
        names = choose_names(options=self._patient.names, stored=held, fresh=("unknown", "unknown"))
        return judge(stored, bootstrap.hub if bootstrap else None, names, self._patient.clock.now())

    def _recovery(self, contents: Mapping[str, bytes], finding: CredentialFinding) -> HubConnection | None:
        if finding.flaw is not Flaw.EXPIRED:
            return None
        names = choose_names(options=self._patient.names, stored=stored_texts(contents), fresh=("unknown", "unknown"))
        return recovery_connection(contents, names, self._patient.clock.now(), self._patient.reach)

    def _bootstrap(self, find: Callable[[], HubConnection]) -> tuple[HubConnection | None, DoctorStep]:
        name = "bootstrap kubeconfig"
        try:
            connection = find()
        except InvalidError as error:
            return None, DoctorStep(name, ok=False, said=error.message, advice=NEW_BOOTSTRAP)
        finding = validity(connection.chain, self._patient.clock.now())
        if finding is not None:
            return connection, DoctorStep(name, ok=False, said=finding.message, advice=NEW_BOOTSTRAP)
        until = f", until {format_time(connection.chain[0].not_after)}" if connection.chain else ""
        return connection, DoctorStep(name, ok=True, said=f"for the hub at {connection.address.target}{until}")

    async def _way(self, connection: HubConnection) -> AsyncGenerator[DoctorStep, None]:
        broken = False
        async for step in self._network(connection.address):
            broken = not step.ok
            yield step
        if not broken:
            async for step in self._hub(connection):
                yield step

    async def _network(self, address: HubAddress) -> AsyncGenerator[DoctorStep, None]:
        if address.proxy:
            place, through = shown_proxy(address.proxy), f", a proxy, through which the hub at {address.target} is reached"
        else:
            place, through = address.target, ""
        host, port = _place(place)
        yield (step := await _tried("name", self._patient.network.resolve(host), f"{host} is {{}}{through}", _DNS))
        if step.ok:
            yield await _tried("connection", self._patient.network.connect(host, port), f"{host}:{port} answers", _TCP)

    async def _hub(self, connection: HubConnection) -> AsyncGenerator[DoctorStep, None]:
        """Check TLS, both certificates, the hub's id and clock; with an agent's certificate also the acceptance."""
        cluster, acceptance = _agents_cluster(connection), None
        client = self._patient.dial(connection.address, connection.identity)
        try:
            async with asyncio.timeout(4 * PATIENCE.total_seconds()):
                info = await client.info()
                if cluster is not None:
                    acceptance = await client.acceptance(cluster)
        except TimeoutError:
            advice = "look at the hub: /readyz, its log, its load"
            yield DoctorStep("hub", ok=False, said="it does not answer in time", advice=advice)
        except ForbiddenError as error:
            yield forbidden(error, connection)
        except (UnauthorizedError, NotFoundError) as error:
            yield DoctorStep("hub", ok=False, said=error.message, advice=NEW_BOOTSTRAP)
        except MusterError as error:
            yield DoctorStep("hub", ok=False, said=error.message, advice=_HUB)
        else:
            yield met_hub(info, connection, self._patient.clock.now())
            if cluster is not None and acceptance is not None and acceptance is not HubAcceptance.UNKNOWN:
                yield accepted(cluster, acceptance)
        finally:
            await client.close()

    async def _agent(self) -> DoctorStep:
        """Read the agent's state from its probe. Only the agent knows its acceptance and its last acknowledged beat."""
        contents: Contents = {}
        with suppress(MusterError):  # already reported with the stored credential
            contents = (await self._patient.secrets.read(OWNER_SECRET)).contents
        if LEFT in contents:
            advice = "hand in a new bootstrap kubeconfig, or start the agent with --rejoin"
            return DoctorStep("agent", ok=False, said="this cluster has left its hubs: the agent stays away", advice=advice)
        place = reachable(self._patient.probes)
        if not place:
            return await self._elsewhere(contents)
        try:
            status, text = await self._patient.network.ask(place, "/readyz")
        except (OSError, TimeoutError, ValueError) as error:
            said = f"nobody answers at {place}: {words_of(error)}"
            return DoctorStep("agent", ok=False, said=said, advice="is `spoke run` running, with this --health-listen?")
        if status == 200:  # noqa: PLR2004 - OK
            return DoctorStep("agent", ok=True, said="the hub has acknowledged its last beat in time")
        return DoctorStep("agent", ok=False, said=text.strip(), advice=advice_on(text))

    async def _elsewhere(self, contents: Contents) -> DoctorStep:
        """Read the agent's state from its Lease, when the agent was not found on this machine."""
        advice = "is `spoke run` running, with these settings? Ask it where it runs: " + _RUN_THERE
        try:
            record = await self._patient.lock.read() if self._patient.lock is not None else None
        except MusterError as error:
            return DoctorStep("agent", ok=False, said=f"its Lease cannot be read: {error.message}", advice=advice)
        if record is None or not record.holder or record.renewed_at + record.lease < self._patient.clock.now():
            return DoctorStep("agent", ok=False, said="none was found on this machine, and none holds the Lease", advice=advice)
        if CERTIFICATE not in contents:
            said = f"{record.holder} works, and has no certificate yet"
            return DoctorStep("agent", ok=False, said=said, advice="approve its request on the hub: hubctl get csr")
        if not record.status:
            said = f"{record.holder} works and has not reported its state in its Lease: it has just started, or is older"
            return DoctorStep("agent", ok=False, said=said, advice=f"call this again, or ask it where it runs: {_RUN_THERE}")
        if record.status == READY:
            return DoctorStep("agent", ok=True, said=f"{record.holder} works: the hub has acknowledged its last beat in time")
        return DoctorStep("agent", ok=False, said=f"{record.holder} works, {record.status}", advice=advice_on(record.status))


def _agents_cluster(connection: HubConnection) -> ClusterName | None:
    """The cluster in an agent's own certificate; None for any other credential."""
    agent = parse_agent_user(connection.certificate.subject.common_name) if connection.chain else None
    return agent[0] if agent is not None else None


def _place(target: str) -> tuple[str, int]:
    parts = urlsplit(target if "://" in target else f"//{target}")
    return parts.hostname or "", parts.port or HTTPS


async def _tried(name: str, work: Awaitable[object], well: str, advice: str) -> DoctorStep:
    try:
        async with asyncio.timeout(PATIENCE.total_seconds()):
            answer = await work
    except (OSError, TimeoutError) as error:
        return DoctorStep(name, ok=False, said=words_of(error), advice=advice)
    return DoctorStep(name, ok=True, said=well.format(answer))
