"""What an agent is told about itself, and the parts that it works with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random

from machinery.runtime.backoff import Backoff
from machinery.runtime.clock import Clock
from machinery.runtime.scheduler import Timetable
from spoke.bootstraps import Bootstraps
from spoke.credentials.kubeconfigs import HOWEVER
from spoke.domain.ack_timeout import Detection
from spoke.domain.addon import AddOn
from spoke.domain.hubs import HubSelectionPolicy
from spoke.domain.report import ExternalEndpoint
from spoke.domain.route import Reach
from spoke.domain.status import ClusterClaimRules
from spoke.ports import Announcer, Attest, Cluster, CredentialDirectory, Dial, Secrets


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
    unwelcome: Pause = Pause(timedelta(seconds=5), timedelta(seconds=15), jitter=0.5)
    """Between sessions that the hub refuses: an operator who denied the cluster may accept it again."""


@dataclass(frozen=True, slots=True)
class Hubs:
    """How the agent goes from hub to hub; without meaning where it has only one."""

    policy: HubSelectionPolicy = field(default_factory=HubSelectionPolicy)
    patience: timedelta = timedelta(milliseconds=1500)
    """How long a lost owner is tried again before the agent goes to another: drawn from a third of it to the whole."""
    steady: timedelta = timedelta(seconds=30)
    """A session that lasted so long makes good what failed at the hub before."""
    first: timedelta = timedelta(seconds=10)
    """How long a new agent waits for the hub that it prefers, while another would do."""
    rest: Pause = Pause(timedelta(seconds=1), timedelta(minutes=1), jitter=0.5)
    """After a failure at a hub, before it is tried again."""


@dataclass(frozen=True, slots=True)
class AddOnCare:
    """How add-ons are looked after: what is set for the agent as a whole."""

    enabled: bool = True
    driver: str = ""
    """`csr` or `token`, which the agent notes on the hub; empty: as the hub has it noted, `csr` where it has not."""
    token_lifetime: timedelta = timedelta(days=365)
    lease_period: timedelta = timedelta(seconds=30)
    lease_grace: timedelta = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """What the agent is told about itself."""

    cluster_name: str = ""
    agent_id: str = ""
    duration: timedelta | None = None
    endpoints: tuple[ExternalEndpoint, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    claims: ClusterClaimRules = field(default_factory=ClusterClaimRules)
    resync: timedelta = timedelta(minutes=1)
    addons: AddOnCare = field(default_factory=AddOnCare)
    pauses: Pauses = Pauses()
    reach: Reach = HOWEVER
    hubs: Hubs = field(default_factory=Hubs)
    detection: Detection = field(default_factory=Detection)
    standby_registration: bool = True
    """Whether the agent registers at every hub of its list, or only at the one it goes to."""


@dataclass(frozen=True, slots=True)
class World:
    """What the agent works with."""

    bootstrap: Bootstraps
    dial: Dial
    spoke: Cluster
    management: Cluster
    secrets: Secrets
    addon_secrets: Callable[[AddOn], Secrets]
    directory: CredentialDirectory | None
    clock: Clock
    timetable: Timetable
    random: Random
    recover: Dial | None = None
    """Dials a hub with a recovery certificate; None: certificates are not recovered."""
    attest: Attest | None = None
    """Proves to a hub which cluster this is; None: nothing does."""
    announcer: Announcer | None = None
    """Shows what is decided; None: only the log tells."""
