"""All settings of a hub, in one flat list of names."""

from hub.settings.attestations import Attestations
from hub.settings.authorities import Authorities
from hub.settings.availability import Silence
from hub.settings.capacity import Capacity
from hub.settings.clusters import Clusters
from hub.settings.election import Election
from hub.settings.external_authenticators import Entrances
from hub.settings.kubernetes_ca import KubernetesCa
from hub.settings.lifetimes import Lifetimes
from hub.settings.locations import Places
from hub.settings.metrics import Seeing
from hub.settings.process import Process
from hub.settings.retention import Retention
from hub.settings.telemetry import Telemetry


class Settings(
    Process,
    Seeing,
    Telemetry,
    Election,
    Silence,
    Capacity,
    Retention,
    Lifetimes,
    Attestations,
    Clusters,
    KubernetesCa,
    Entrances,
    Authorities,
    Places,
):
    """All settings of a hub. The help lists the last group first."""
