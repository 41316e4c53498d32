"""All settings of a hub, in one flat list of names."""

from hub.settings.attestations import Attestations
from hub.settings.authorities import AuthoritySettings
from hub.settings.availability import AvailabilitySettings
from hub.settings.capacity import CapacitySettings
from hub.settings.clusters import Clusters
from hub.settings.election import Election
from hub.settings.external_authenticators import Entrances
from hub.settings.kubernetes_ca import KubernetesCa
from hub.settings.lifetimes import LifetimeSettings
from hub.settings.locations import Places
from hub.settings.metrics import Seeing
from hub.settings.process import ProcessSettings
from hub.settings.retention import RetentionSettings
from hub.settings.telemetry import Telemetry


class HubSettings(
    ProcessSettings,
    Seeing,
    Telemetry,
    Election,
    AvailabilitySettings,
    CapacitySettings,
    RetentionSettings,
    LifetimeSettings,
    Attestations,
    Clusters,
    KubernetesCa,
    Entrances,
    AuthoritySettings,
    Places,
):
    """All settings of a hub. The help lists the last group first."""
