"""Feature gates of an agent, with Open Cluster Management's names and defaults.

ClusterClaim         on    ClusterClaims are reported
ClusterProperty      off   ClusterProperties (about.k8s.io) are reported; for equal names the property overrides the claim
AddonManagement      on    add-ons get certificates and tokens, and their leases are checked
MultipleHubs         off   without effect: an agent with several bootstrap kubeconfigs has several hubs
V1beta1CSRAPICompatibility  off   cannot be switched on: no supported API server serves that version
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from machinery.errors import InvalidError

_FIELDS = {"ClusterClaim": "cluster_claim", "ClusterProperty": "cluster_property", "AddonManagement": "addon_management"}
_WITHOUT_EFFECT = ("MultipleHubs",)
_GONE = ("V1beta1CSRAPICompatibility",)
KNOWN = (*_FIELDS, *_WITHOUT_EFFECT, *_GONE)
_WORDS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


@dataclass(frozen=True, slots=True)
class FeatureGates:
    cluster_claim: bool = True
    cluster_property: bool = False
    addon_management: bool = True


def gates_of(overrides: Mapping[str, str]) -> FeatureGates:
    """The defaults with `overrides`. Raises InvalidError for an unknown gate, and for a value that is not a boolean."""
    gates = FeatureGates()
    for name, text in overrides.items():
        if name not in KNOWN:
            raise InvalidError(f'there is no feature gate "{name}" of an agent; there are {", ".join(KNOWN)}')
        value = _WORDS.get(text.strip().lower())
        if value is None:
            raise InvalidError(f'feature gate {name} is "{text}", not true or false')
        if name in _GONE and value:
            raise InvalidError(
                f"feature gate {name} cannot be switched on: no supported API server has that version of the API"
            )
        if name in _FIELDS:
            gates = replace(gates, **{_FIELDS[name]: value})
    return gates
