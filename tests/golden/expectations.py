"""Where we differ from the recording on purpose, with the reason. A listed difference that is gone fails the replay."""

from pathlib import Path
from typing import Any

import yaml

STAMPED = ".spec.taints[0].timeAdded is not recorded"
"""The hub gives every taint its time, as OCM's webhook does; the recorded server had no webhooks."""
DELIBERATE: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("deliberate.yaml").read_text())


def unexpected(case: str, found: list[str]) -> list[str]:
    """The differences that no one wanted, and the wanted ones that are gone."""
    listed = [difference for difference in DELIBERATE if difference["case"] == case]
    allowed = {aspect for difference in listed for aspect in difference["aspects"]}
    certain = {aspect for difference in listed if difference.get("certain", True) for aspect in difference["aspects"]}
    told = {difference.partition(":")[0] for difference in found}
    unwanted = [difference for difference in found if difference.partition(":")[0] not in allowed]
    return [*unwanted, *(f"{aspect}: listed as different, but it is as recorded" for aspect in sorted(certain - told))]
