"""The declared kinds: the hub's in `hub/registry/declarations`, Kubernetes' own in `machinery.apiserver.kinds`."""

from functools import cache
from pathlib import Path

from hub.api.managed_fields import FieldDivision
from hub.api.meta.change import Kind
from machinery.apiserver.kinds.declaration import KUBERNETES, Declarations
from machinery.meta.managedfields.structure import structure

DECLARATIONS = Declarations(*sorted((Path(__file__).parents[1] / "declarations").glob("*.yaml")))
"""All kinds of the hub that are not Kubernetes' own, with their groups without the suffix: `managedclusters.cluster`."""
declared = DECLARATIONS.resource


@cache
def division_of(kind: Kind) -> FieldDivision:
    """Division of the kind's objects into owned fields, by its schema."""
    custom = kind not in KUBERNETES
    return FieldDivision(kind, structure((DECLARATIONS if custom else KUBERNETES).schema(kind)), custom)
