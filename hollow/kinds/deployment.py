"""Deployment: its pods exist and are Running at once, without containers."""

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
