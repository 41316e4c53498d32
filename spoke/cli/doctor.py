"""`spoke doctor`: checks the path from this cluster to its hubs step by step and prints advice for failures.

The command can run while the agent runs, because it only reads: it opens no session, requests no certificate and writes
nothing. The last check reads the agent's own state.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from machinery.client.proxy import shown_proxy
from machinery.election import Lock
from machinery.errors import ForbiddenError, InvalidError, MusterError, NotFoundError, UnauthorizedError
from machinery.identity import parse_agent_user
from machinery.meta.timestamps import format_time
from machinery.runtime.clock import Clock
from spoke.bootstraps.listing import Bootstraps
from spoke.cli.findings import NEW_BOOTSTRAP, DoctorStep, accepted, advice_on, failed, forbidden, met_hub, passed, words_of
from spoke.cli.network import TIMEOUT, Network, reachable
from spoke.credentials.kubeconfigs import (
    ANY_REACH,
    HubConnection,
    recovery_connection,
    recovery_obstacle,
    stored_connection,
    stored_texts,
    view_stored,
)
from spoke.credentials.owner import owner_of
from spoke.credentials.slot import OWNER_SECRET, Contents, credential_of, hub_slot
from spoke.domain.credential import CERTIFICATE, LEFT, Flaw, judge, validity
from spoke.domain.hubs import HubAcceptance
from spoke.domain.names import choose_names
from spoke.domain.route import Reach
from spoke.ports.cluster import Cluster, Secrets
from spoke.ports.hub import Dial, HubAddress

HTTPS = 443
READY = "ok"
"""The state that an agent reports while its hub acknowledges its beats (`spoke.observability.progress`)."""
_RIGHTS = "give the agent get, create and update on secrets in its namespace, and check --component-namespace"
_GRANT = "grant them to the user of --kubeconfig (of --spoke-kubeconfig, for the managed cluster) by a Role, as the chart does"
_REGISTERS = "the agent registers again with the bootstrap kubeconfig"
_DNS = "check the address in the kubeconfig and this machine's DNS"
_TCP = "check that the hub runs, and firewalls, load balancers and network policies between here and there"
_RUN_THERE = "kubectl exec deploy/muster-spoke -- spoke doctor (after a Helm installation: deploy/RELEASE-muster-spoke)"
_HUB = "do what the message says; the hub's log may have more details"


@dataclass(frozen=True, slots=True)
class Doctor:
    """One run of all checks. `steps` yields the results in order. It ends early if a failure makes further checks useless."""

    bootstrap: Bootstraps
    management: Cluster
    secrets: Secrets
    dial: Dial
    clock: Clock
    network: Network
    names: tuple[str, str] = ("", "")
    reach: Reach = ANY_REACH
    probes: str = ""
    """Address of the agent's probes. Empty or with port 0: no agent with these settings was found on this machine."""
    lock: Lock | None = None
    """The agent's Lease; None if the agent runs without leader election."""
    namespace: str = ""
    missing: Callable[[], Awaitable[Sequence[object]]] | None = None
    """Returns the permissions that the agent lacks in the management cluster and in the managed cluster. Raises MusterError."""

    async def steps(self) -> AsyncGenerator[DoctorStep, None]:
        try:
            version = await self.management.version()
        except MusterError as error:
            advice = "check --kubeconfig, or that the pod's service account reaches the API server"
            yield failed("this cluster", f"its API server does not answer: {error.message}", advice)
        else:
            yield passed("this cluster", f"its API server answers, {version}")
            if (missing := await self._namespace()) is not None:
                yield missing
            if self.missing is not None:
                yield await self._permissions(self.missing)
            async for step in self._hubs():
                yield step
        yield await self._agent()

    async def _namespace(self) -> DoctorStep | None:
        name = self.namespace
        try:
            if not name or await self.management.namespace_exists(name):
                return None
        except MusterError as error:
            return failed("namespace", f'"{name}": {error.message}', _RIGHTS)
        advice = f"kubectl create namespace {name}, or let the agent create it; check --component-namespace"
        return failed("namespace", f'there is no namespace "{name}"', advice)

    async def _permissions(self, ask: Callable[[], Awaitable[Sequence[object]]]) -> DoctorStep:
        try:
            missing = await ask()
        except MusterError as error:
            return failed("permissions", f"they cannot be checked: {error.message}", _GRANT)
        if missing:
            return failed("permissions", f"missing: {'; '.join(map(str, missing))}", _GRANT)
        return passed("permissions", "the agent has all permissions that it needs")

    async def _hubs(self) -> AsyncGenerator[DoctorStep, None]:
        """Check each hub of the list with its own credential. A failure of one hub does not prevent checks of the next hubs."""
        await self.bootstrap.load()
        listing = self.bootstrap.read()
        try:
            contents: Contents | None = (await self.secrets.read(OWNER_SECRET)).contents
        except MusterError as error:
            yield failed("stored credential", f'secret "{OWNER_SECRET}": {error.message}', _RIGHTS)
            contents = None
        if len(self.bootstrap.sources) <= 1:
            try:
                bootstrap, trouble = self.bootstrap.first(), ""
            except InvalidError as error:
                bootstrap, trouble = None, error.message
            async for step in self._hub(bootstrap, trouble, contents):
                yield step
            return
        for each in listing.errors:
            yield failed("list of hubs", each.message, NEW_BOOTSTRAP)
        owner = owner_of(contents or {})
        for hub in listing.hubs:
            mine = hub.hub_id == owner
            kept = contents if mine else credential_of(await hub_slot(self.secrets, hub.hub_id).read())
            async for step in self._hub(hub.connection, "", kept):
                yield replace(step, name=f"{hub.name}{' (owner)' if mine else ''}: {step.name}")
        if owner is not None and listing.get(owner) is None:
            said = f"hub {owner}, which holds the session, is not on it any more" if listing.hubs else "it is empty"
            advice = "the agent changes to a hub of its list without further action"
            yield DoctorStep("list of hubs", ok=not listing.hubs, said=said, advice=advice)

    async def _hub(
        self, bootstrap: HubConnection | None, trouble: str, contents: Contents | None
    ) -> AsyncGenerator[DoctorStep, None]:
        """Check the credentials for one hub and the connection to this hub.

        `contents` None: the stored credential is unreadable. `trouble`: why `bootstrap` is None.
        """
        now, connection = self.clock.now(), bootstrap
        given = self._bootstrap_step(bootstrap, trouble)
        if contents is None:
            yield given
        else:
            held = stored_texts(contents)
            names = choose_names(options=self.names, stored=held, fresh=("unknown", "unknown"))
            finding = judge(view_stored(contents), bootstrap.hub if bootstrap else None, names, now)
            if finding is None:
                connection = stored_connection(contents, self.reach)
                until = format_time(connection.certificate.not_after)
                yield passed("stored credential", f'agent "{held[1]}" of cluster "{held[0]}", until {until}')
            elif finding.flaw is Flaw.EXPIRED and (recovery := recovery_connection(contents, names, now, self.reach)):
                connection = recovery
                yield passed("stored credential", f"{finding.message}; its recovery certificate brings it back")
            else:
                why = recovery_obstacle(contents, self.reach) if finding.flaw is Flaw.EXPIRED else ""
                said = f"{finding.message}; {why}" if why else finding.message
                yield DoctorStep("stored credential", ok=finding.flaw is Flaw.ABSENT, said=said, advice=_REGISTERS)
                yield given
                connection = bootstrap if given.ok else None
        if connection is not None:
            async for step in self._network(connection.address):
                yield step
                if not step.ok:
                    return
            async for step in self._answer(connection):
                yield step

    def _bootstrap_step(self, bootstrap: HubConnection | None, trouble: str) -> DoctorStep:
        name = "bootstrap kubeconfig"
        if bootstrap is None:
            return failed(name, trouble, NEW_BOOTSTRAP)
        if finding := validity(bootstrap.chain, self.clock.now()):
            return failed(name, finding.message, NEW_BOOTSTRAP)
        until = f", until {format_time(bootstrap.chain[0].not_after)}" if bootstrap.chain else ""
        return passed(name, f"for the hub at {bootstrap.address.target}{until}")

    async def _network(self, address: HubAddress) -> AsyncGenerator[DoctorStep, None]:
        place, through = address.target, ""
        if address.proxy:
            place, through = shown_proxy(address.proxy), f", a proxy, through which the hub at {address.target} is reached"
        parts = urlsplit(place if "://" in place else f"//{place}")
        host, port = parts.hostname or "", parts.port or HTTPS
        yield (step := await _try("name", self.network.resolve(host), f"{host} is {{}}{through}", _DNS))
        if step.ok:
            yield await _try("connection", self.network.connect(host, port), f"{host}:{port} answers", _TCP)

    async def _answer(self, connection: HubConnection) -> AsyncGenerator[DoctorStep, None]:
        """Check TLS, the certificates of both sides, the hub's id and clock; with an agent's certificate, also acceptance."""
        agent = parse_agent_user(connection.certificate.subject.common_name) if connection.chain else None
        acceptance = HubAcceptance.UNKNOWN
        client = self.dial(connection.address, connection.identity)
        try:
            async with asyncio.timeout(4 * TIMEOUT.total_seconds()):
                info = await client.info()
                if agent is not None:
                    acceptance = await client.acceptance(agent[0])
        except TimeoutError:
            yield failed("hub", "it does not answer in time", "check the hub: /readyz, its log, its load")
        except ForbiddenError as error:
            yield forbidden(error, connection)
        except (UnauthorizedError, NotFoundError) as error:
            yield failed("hub", error.message, NEW_BOOTSTRAP)
        except MusterError as error:
            yield failed("hub", error.message, _HUB)
        else:
            yield met_hub(info, connection, self.clock.now())
            if agent is not None and acceptance is not HubAcceptance.UNKNOWN:
                yield accepted(agent[0], acceptance)
        finally:
            await client.close()

    async def _agent(self) -> DoctorStep:
        """Read the agent's state from its probe. Only the agent knows its acceptance and its last acknowledged beat."""
        contents: Contents = {}
        with suppress(MusterError):  # already reported with the stored credential
            contents = (await self.secrets.read(OWNER_SECRET)).contents
        if LEFT in contents:
            advice = "hand in a new bootstrap kubeconfig, or start the agent with --rejoin"
            return failed("agent", "this cluster has left its hubs: the agent stays away", advice)
        place = reachable(self.probes)
        if not place and self.lock is None and CERTIFICATE in contents:
            return passed("agent", f"not checked: without leader election only the agent has its state: {_RUN_THERE}")
        if not place:
            return await self._elsewhere(contents)
        try:
            status, text = await self.network.ask(place, "/readyz")
        except (OSError, TimeoutError, ValueError) as error:
            said = f"no agent answers at {place}: {words_of(error)}"
            return failed("agent", said, "is `spoke run` running, with this --health-listen?")
        if status == 200:  # noqa: PLR2004 - OK
            return passed("agent", "the hub has acknowledged its last beat in time")
        return failed("agent", text.strip(), advice_on(text))

    async def _elsewhere(self, contents: Contents) -> DoctorStep:
        """Read the agent's state from its Lease, because no agent was found on this machine."""
        advice = f"is `spoke run` running, with these settings? Ask it where it runs: {_RUN_THERE}"
        try:
            record = await self.lock.read() if self.lock is not None else None
        except MusterError as error:
            return failed("agent", f"its Lease cannot be read: {error.message}", advice)
        if record is None or not record.holder or record.renewed_at + record.lease < self.clock.now():
            return failed("agent", "none was found on this machine, and none holds a Lease", advice)
        if CERTIFICATE not in contents:
            said = f"{record.holder} works, and has no certificate yet"
            return failed("agent", said, "approve its request on the hub: hubctl get csr")
        if not record.status:
            said = f"{record.holder} works and has not reported its state in its Lease: it has just started"
            return failed("agent", said, f"call this again, or ask it where it runs: {_RUN_THERE}")
        if record.status == READY:
            return passed("agent", f"{record.holder} works: the hub has acknowledged its last beat in time")
        return failed("agent", f"{record.holder} works, {record.status}", advice_on(record.status))


async def _try(name: str, work: Awaitable[object], well: str, advice: str) -> DoctorStep:
    try:
        async with asyncio.timeout(TIMEOUT.total_seconds()):
            answer = await work
    except (OSError, TimeoutError) as error:
        return failed(name, words_of(error), advice)
    return passed(name, well.format(answer))
