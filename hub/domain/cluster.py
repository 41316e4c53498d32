"""ManagedClusters: what a join and a report say, and the rules that turn them into the document.

Sources: OCM's ManagedCluster API (conditions, reasons and messages are its words); architecture D5 and D6.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from machinery.conditions import Condition
from machinery.identity import AgentId, ClusterName, CredentialId


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Where the managed cluster's own API server is."""

    url: str
    ca_bundle: bytes = b""


@dataclass(frozen=True, slots=True)
class Claim:
    """A cluster claim: a fact that the cluster tells about itself."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Joining:
    """A cluster asks to be known.

    `credential` is the bootstrap credential it came with; None: it came with its own certificate.
    """

    name: ClusterName
    cluster_uid: str
    agent: AgentId | None = None
    client_configs: tuple[ClientConfig, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    credential: CredentialId | None = None


@dataclass(frozen=True, slots=True)
class Joined:
    """The ManagedCluster that a join made or found."""

    created: bool
    accepted: bool
    uid: str


@dataclass(frozen=True, slots=True)
class StatusReport:
    """All that the agent owns of `status`. `complete` False: capacity, allocatable, version and claims stay as they are."""

    conditions: tuple[Condition, ...] = ()
    complete: bool = True
    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    kubernetes_version: str = ""
    claims: tuple[Claim, ...] = ()
    client_configs: tuple[ClientConfig, ...] = ()
    node_count: int | None = None
