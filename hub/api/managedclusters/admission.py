"""Validation and defaults of ManagedClusters.

Source: OCM's mutating and validating webhooks (`timeAdded` of taints, client config URLs, the name is a valid namespace name).
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from hub.api.liveness import DEFAULT_LEASE_DURATION
from hub.api.managedclusters.cluster import API_VERSION, GROUP, KIND
from hub.api.meta import document as doc
from hub.api.namespaces import RESERVED, STANDING
from machinery.errors import Cause, InvalidError, forbidden, invalid_object, invalid_value
from machinery.identity import ALL_CLUSTERS_GROUP, ClusterName, cluster_group, cluster_name
from machinery.meta.objects import Document
from machinery.meta.selectors import valid_label_key, valid_label_value
from machinery.meta.timestamps import format_time
from machinery.product import is_reserved

CONFIGS = "managedClusterClientConfigs"
_encode = msgspec.json.Encoder(order="sorted").encode


def admitted(new: Document, old: Document | None, now: datetime) -> dict[str, Any]:
    """Return `new` with defaults, and with `timeAdded` in its taints. Raises InvalidError.

    Stored values that do not change are not validated again, so that an old value never blocks writes of the status.
    """
    spec = {"hubAcceptsClient": False, **doc.mapping(new, "spec")}
    spec.setdefault("leaseDurationSeconds", round(DEFAULT_LEASE_DURATION.total_seconds()))
    before, name = None if old is None else doc.mapping(old, "spec"), doc.name(new)
    changed = {field for field in spec if before is None or spec[field] != before.get(field)}
    if spec.get("taints") and "taints" in changed:
        spec["taints"] = _stamped_taints(doc.sequence(new, "spec", "taints"), before, now, name)
    causes = _name_causes(name) if before is None else []
    for index, config in enumerate(doc.sequence(new, "spec", CONFIGS) if CONFIGS in changed else ()):
        url = str(config.get("url", ""))
        if not url.startswith("https://"):
            causes.append(invalid_value(f"spec.{CONFIGS}[{index}].url", url[:200], "must begin with https://"))
    seconds = spec["leaseDurationSeconds"]
    is_number = isinstance(seconds, int) and not isinstance(seconds, bool) and 0 <= seconds < 2**31
    if "leaseDurationSeconds" in changed and not is_number:
        message = f"Invalid value: {str(seconds)[:80]}: must be a number of seconds that is not negative"
        causes.append(Cause("FieldValueInvalid", message, "spec.leaseDurationSeconds"))
    if causes:
        raise invalid_object(name, KIND, GROUP, causes)
    return {**doc.typed(new, API_VERSION, KIND), "spec": spec}


def _name_causes(name: str) -> list[Cause]:
    """An agent gets rights by the namespace and the group with its cluster's name, so these may not be others of the hub."""
    causes = []
    if name in STANDING or name.startswith(RESERVED) or cluster_group(ClusterName(name)) == ALL_CLUSTERS_GROUP:
        causes.append(invalid_value("metadata.name", name, "this name is reserved for the hub: use another one"))
    try:
        cluster_name(name)
    except InvalidError as error:
        causes.append(invalid_value("metadata.name", name[:80], error.message))
    return causes


def _stamped_taints(taints: Sequence[Any], before: Document | None, now: datetime, name: str) -> list[dict[str, Any]]:
    """Return the taints with `timeAdded`. The hub sets it for a new or changed taint and keeps it for an unchanged one.

    Taints are compared by all fields except `timeAdded`, since one key may occur with several effects. `before`: the stored
    spec.
    """
    there = [taint for taint in (before or {}).get("taints") or () if isinstance(taint, Mapping)]
    known = {_without_time(taint): taint for taint in reversed(there)}  # the first of equal taints wins
    stamped = []
    for index, taint in enumerate(taints):
        same = known.get(_without_time(taint))
        added = same.get("timeAdded") if same is not None else format_time(now)
        chosen = taint.get("timeAdded")
        if before is not None and chosen and chosen != added:
            message = f'the hub sets timeAdded of taint "{taint.get("key")}"'
            raise invalid_object(name, KIND, GROUP, [forbidden(f"spec.taints[{index}].timeAdded", message)])
        stamped.append({**taint, "timeAdded": added})
    return stamped


def _without_time(taint: Mapping[str, Any]) -> bytes:
    """The taint without `timeAdded`, as comparable bytes."""
    return _encode({field: value for field, value in taint.items() if field != "timeAdded" and value != ""})


ANY = "/*"


def permitted_join_labels(labels: Mapping[str, str], patterns: Iterable[str]) -> dict[str, str]:
    """Return an agent's labels that are valid, not reserved, and in `patterns` by key (`name`) or prefix (`prefix/*`)."""
    listed = tuple(patterns)

    def is_permitted(key: str, value: str) -> bool:
        is_listed = any(key.startswith(each[:-1]) if each.endswith(ANY) else key == each for each in listed)
        return is_listed and valid_label_key(key) and valid_label_value(value) and not is_reserved(key)

    return {key: value for key, value in labels.items() if is_permitted(key, value)}
