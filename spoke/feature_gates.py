"""Feature gates: Open Cluster Management's names and defaults, as far as an agent has them.

ClusterClaim         on    ClusterClaims are reported
ClusterProperty      off   ClusterProperties (about.k8s.io) are reported; of one name the property wins over the claim
AddonManagement      on    add-ons get their certificates and tokens, and their leases are looked at
MultipleHubs         off   of no consequence: an agent with several bootstrap kubeconfigs has several hubs
V1beta1CSRAPICompatibility  off   cannot be switched on: no API server that is still supported has that version
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
    """What of the agent is switched on."""

    cluster_claim: bool = True
    cluster_property: bool = False
    addon_management: bool = True


def gates_of(told: Mapping[str, str]) -> FeatureGates:
    """The defaults with what was told. Raises InvalidError for an unknown gate, and for what is neither true nor false."""
    gates = FeatureGates()
    for name, text in told.items():
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
