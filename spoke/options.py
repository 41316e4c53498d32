"""The options of an agent and its ports."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random

from machinery.runtime.backoff import Backoff
from machinery.runtime.clock import Clock
from machinery.runtime.scheduler import Scheduler
from spoke.bootstraps.listing import Bootstraps
from spoke.credentials.kubeconfigs import ANY_REACH
from spoke.domain.addon import AddOn
from spoke.domain.hubs import HubSelectionPolicy
from spoke.domain.report import ClusterClaimRules, ExternalEndpoint
from spoke.domain.route import Reach
from spoke.domain.schedule import Detection
from spoke.ports.cluster import Announcer, Attest, Cluster, CredentialDirectory, Secrets
from spoke.ports.hub import Dial


@dataclass(frozen=True, slots=True)
class Pause:
    """Backoff after failures: pauses double from `first` to `longest`. Each is reduced by a random share of up to `jitter`."""

    first: timedelta
    longest: timedelta
    jitter: float = 1.0

    def backoff(self, random: Random) -> Backoff:
        return Backoff(self.first, self.longest, jitter=self.jitter, random=random)


@dataclass(frozen=True, slots=True)
class Pauses:
    """Delays between retries. The jitter is 1 for failures that a whole fleet may have at the same time."""

    retry: Pause = Pause(timedelta(milliseconds=500), timedelta(seconds=30))
    denied: Pause = Pause(timedelta(seconds=10), timedelta(minutes=10), jitter=0.5)
    refused: Pause = Pause(timedelta(seconds=5), timedelta(minutes=1), jitter=0.5)
    unwelcome: Pause = Pause(timedelta(seconds=5), timedelta(seconds=15), jitter=0.5)
    """Pause after the hub refuses a session. An operator who denied the cluster may accept it again."""
    lost: Pause = Pause(timedelta(seconds=10), timedelta(minutes=10), jitter=0.5)
    """Pause at a standby hub while no credential seems usable. An attempt may succeed if this machine's clock is wrong."""
    epoch: Pause = Pause(timedelta(seconds=1), timedelta(minutes=10), jitter=0.5)
    """Pause between two increases of the epoch, if the hub soon refuses the increased epoch too."""


@dataclass(frozen=True, slots=True)
class Hubs:
    """Options for changes between hubs. They have no effect if the agent has only one hub."""

    policy: HubSelectionPolicy = field(default_factory=HubSelectionPolicy)
    timeout: timedelta = timedelta(milliseconds=1200)
    """The agent retries a lost owner for a random time before it changes hub: from a third of this value up to this value."""
    steady: timedelta = timedelta(seconds=30)
    """A session that lasted this long resets earlier failures of its hub."""
    first: timedelta = timedelta(seconds=10)
    """Time for which a new agent waits for its preferred hub while another hub is usable."""
    rest: Pause = Pause(timedelta(seconds=1), timedelta(minutes=1), jitter=0.5)
    """Pause after a failure of a hub, before the next attempt at this hub."""


@dataclass(frozen=True, slots=True)
class AddOnOptions:
    enabled: bool = True
    driver: str = ""
    """How add-ons authenticate: `csr` or `token`. The agent reports it to the hub. Empty: the hub's value, else `csr`."""
    token_lifetime: timedelta = timedelta(days=365)
    lease_period: timedelta = timedelta(seconds=30)
    lease_grace: timedelta = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class AgentOptions:
    cluster_name: str = ""
    agent_id: str = ""
    duration: timedelta | None = None
    endpoints: tuple[ExternalEndpoint, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    claims: ClusterClaimRules = field(default_factory=ClusterClaimRules)
    resync: timedelta = timedelta(minutes=1)
    addons: AddOnOptions = field(default_factory=AddOnOptions)
    pauses: Pauses = Pauses()
    reach: Reach = ANY_REACH
    hubs: Hubs = field(default_factory=Hubs)
    detection: Detection = field(default_factory=Detection)
    standby_registration: bool = True
    """True: the agent registers at every hub of its list; False: only at the chosen hub."""


@dataclass(frozen=True, slots=True)
class AgentPorts:
    bootstrap: Bootstraps
    dial: Dial
    managed_cluster: Cluster
    management: Cluster
    secrets: Secrets
    addon_secrets: Callable[[AddOn], Secrets]
    directory: CredentialDirectory | None
    clock: Clock
    scheduler: Scheduler
    random: Random
    attest: Attest | None = None
    """Proves this cluster's identity to a hub; None: no attestation."""
    announcer: Announcer | None = None
    """Records Events about decisions; None if they are only logged."""
