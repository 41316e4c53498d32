"""Add-ons as OCM serves them, in v1beta1 (stored) and v1alpha1, and the scores that an add-on gives to a cluster."""

from collections.abc import Callable, Mapping

from hub.api.managedclusteraddons import versions
from hub.api.meta import document as doc
from hub.api.meta.change import ADDON_DEFINITIONS, ADDON_SCORES, ADDONS
from hub.api.query.selection import ADD_ON_ALIASES, ADD_ON_FIELDS, of_conditions
from hub.registry.generic import HUB_KINDS, declared
from hub.registry.generic.definition import ResourceDefinition
from hub.registry.managedclusteraddons import service as addons
from machinery.apiserver.kinds.declaration import condition_cell
from machinery.apiserver.resource import TableRow
from machinery.meta.timestamps import age_of


def _available(part: str) -> Callable[[TableRow], str]:
    return lambda row: str(condition_cell("Available", part)(row) or "")


def _since(row: TableRow) -> str:
    return age_of(_available("lastTransitionTime")(row), row.now)


def _identified(row: TableRow) -> str:
    """Returns the types of the registrations."""
    registrations = doc.sequence(row.document, "status", "registrations")
    return ",".join(str(entry.get("type")) for entry in registrations if isinstance(entry, Mapping))


MANAGED_CLUSTER_ADD_ON = ResourceDefinition(
    declared(
        ADDONS,
        {"Since": _since, "Reason": _available("reason"), "Registrations": _identified, "Message": _available("message")},
        versions=(HUB_KINDS.version(ADDONS, "v1alpha1", versions.add_on_shown, versions.add_on_stored),),
        selectable=of_conditions,
        selectable_names=ADD_ON_FIELDS,
        field_aliases=ADD_ON_ALIASES,
    ),
    put=addons.put,
)
CLUSTER_MANAGEMENT_ADD_ON = ResourceDefinition(
    declared(
        ADDON_DEFINITIONS,
        versions=(HUB_KINDS.version(ADDON_DEFINITIONS, "v1alpha1", versions.definition_shown, versions.definition_stored),),
    )
)
ADD_ON_PLACEMENT_SCORE = ResourceDefinition(declared(ADDON_SCORES))
