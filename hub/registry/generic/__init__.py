"""Declarations, write paths and schemas that all resources use.

The hub's kinds are declared in `hub/registry/declarations`, Kubernetes' own in `machinery.apiserver.kinds`.
"""

from functools import cache
from pathlib import Path

from hub.api.managed_fields import KindStructure
from hub.api.meta.change import Kind
from machinery.apiserver.kinds.declaration import KUBERNETES, KindManifests
from machinery.meta.managedfields.structure import structure

HUB_KINDS = KindManifests(*sorted((Path(__file__).parents[1] / "declarations").glob("*.yaml")))
"""The hub's own kinds, without those of Kubernetes. Their groups have no suffix here, as in `managedclusters.cluster`."""
declared = HUB_KINDS.resource


@cache
def structure_of(kind: Kind) -> KindStructure:
    """Return how the kind's schema divides objects into fields that field managers can own."""
    custom = kind not in KUBERNETES
    return KindStructure(kind, structure((HUB_KINDS if custom else KUBERNETES).schema(kind)), custom)
