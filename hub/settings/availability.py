"""What follows when clusters fall silent, and when it is held back."""

from datetime import timedelta

from pydantic import Field, ValidationInfo, field_validator

from hub.settings.fields import Count, Duration, NoDuration
from hub.settings.group import SettingsGroup


class AvailabilitySettings(SettingsGroup):
    """Clock skew, taints, flaps, the brake, stale clusters."""

    clock_skew_limit: NoDuration = Field(
        timedelta(),
        description="A cluster whose clock is so far from the hub's is reported as out of sync; nothing else follows. 0s: five "
        "of its lease durations.",
    )
    taint_delay: NoDuration = Field(
        timedelta(seconds=30),
        description="A silent cluster is tainted, and its alarm told, this long after its availability became Unknown: what "
        "else falls silent meanwhile may put on the brake.",
    )
    flap_threshold: Count = Field(
        3, description="A cluster that ceases to be Available so often within --flap-window flaps. 0: none does."
    )
    flap_window: Duration = Field(timedelta(hours=1), description="See --flap-threshold.")
    flap_hold: NoDuration = Field(
        timedelta(minutes=5),
        description="Taints and alarms of a cluster that flaps follow its availability when that has held for so long. Unknown "
        "is never delayed.",
    )
    brake_share: float = Field(
        0.2,
        ge=0,
        le=1,
        description="When more than this share of the living fleet, and --brake-clusters, fall silent within --brake-window, "
        "taints, stale marks and removals are held until most are back, or until `hubctl release-brake`. 0: no brake.",
    )
    brake_clusters: Count = Field(10, description="See --brake-share: so many clusters at least.")
    brake_window: Duration = Field(timedelta(minutes=10), description="See --brake-share.")
    stale_after: NoDuration = Field(
        timedelta(), description="A cluster that is silent for so long is marked as stale. 0s: none is."
    )
    stale_removal_after: NoDuration = Field(
        timedelta(),
        description="A cluster that is silent for so long is removed, but never earlier after its mark than the difference to "
        "--stale-after. What holds its add-ons holds it too, as when it is deleted by hand. 0s: none is.",
    )
    transition_retention: Duration = Field(
        timedelta(days=90), description="Every change of a cluster's availability is kept this long, with its reason."
    )

    @field_validator("stale_removal_after")
    @classmethod
    def _comes_after_a_mark(cls, duration: timedelta, seen: ValidationInfo) -> timedelta:
        mark = seen.data.get("stale_after")
        if duration and mark is not None and not timedelta() < mark < duration:
            raise ValueError("must be longer than stale_after, which must be set too: what is removed was marked before")
        return duration
