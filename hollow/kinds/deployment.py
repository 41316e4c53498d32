"""Deployment: its pods exist at once, and no container runs."""

from hollow.kinds.cells import OPEN
from machinery.apiserver.resource import STATUS, Resource

DEPLOYMENT = Resource(
    group="apps",
    version="v1",
    name="deployments",
    kind="Deployment",
    short_names=("deploy",),
    categories=("all",),
    namespaced=True,
    schema=OPEN,
    subresources=(STATUS,),
    counts_generations=True,
    custom=False,
)
