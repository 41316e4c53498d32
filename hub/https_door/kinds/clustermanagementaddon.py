"""ClusterManagementAddOn as OCM serves it: an add-on that clusters may have, in v1beta1 (stored) and v1alpha1."""

from hub.api.managedclusteraddons import versions
from hub.api.meta import document as doc
from hub.https_door.kinds.addon import ADD_ON_META, CONFIG, COORDINATES, GROUP, SPEC_HASH
from hub.https_door.kinds.schemas import CONDITIONS, NAME, TEXT, Schema, listing, record
from machinery.apiserver.resource import STATUS, Column, Resource, ServedVersion, TableRow

_SHARE: Schema = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "pattern": "^((100|[0-9]{1,2})%|[0-9]+)$",
    "x-kubernetes-int-or-string": True,
}
_PATIENCE: dict[str, Schema] = {
    "maxFailures": {**_SHARE, "default": 0},
    "minSuccessTime": {**TEXT, "default": "0"},
    "progressDeadline": {**TEXT, "default": "None", "pattern": "^(([0-9])+[h|m|s])|None$"},
}
_GROUPS = listing(record("", groupIndex={"type": "integer", "format": "int32"}, groupName=TEXT))
_ROLLOUT: Schema = {
    **record(
        "How changes of the configuration reach the clusters.",
        type={**TEXT, "default": "All", "enum": ["All", "Progressive", "ProgressivePerGroup"]},
        all=record("", **_PATIENCE),
        progressive=record("", **_PATIENCE, mandatoryDecisionGroups=_GROUPS, maxConcurrency=_SHARE),
        progressivePerGroup=record("", **_PATIENCE, mandatoryDecisionGroups=_GROUPS),
    ),
    "default": {"type": "All"},
}
_PLACEMENT = record("", ("name", "namespace"), namespace=NAME, name=NAME, configs=listing(CONFIG), rolloutStrategy=_ROLLOUT)
_STRATEGY: Schema = {
    **record(
        "installStrategy says on which clusters the add-on is installed by itself.",
        type={**TEXT, "default": "Manual", "enum": ["Manual", "Placements"]},
        placements=listing(_PLACEMENT, "namespace", "name"),
    ),
    "default": {"type": "Manual"},
}
_DEFAULT_REFERENCE = record("", ("resource",), group=GROUP, resource=NAME, desiredConfig=SPEC_HASH)
_REFERENCE = record(
    "",
    ("resource",),
    group=GROUP,
    resource=NAME,
    desiredConfig=SPEC_HASH,
    lastKnownGoodConfig=SPEC_HASH,
    lastAppliedConfig=SPEC_HASH,
)
_PROGRESSION = record(
    "", ("name", "namespace"), namespace=NAME, name=NAME, configReferences=listing(_REFERENCE), conditions=CONDITIONS
)
_ABOUT = "ClusterManagementAddOn represents the registration of an add-on to the hub; ManagedClusterAddOns bear its name."
_SPEC = "spec represents the desired configuration of the add-on."
_DEFAULT = record("", ("name",), namespace=TEXT, name=NAME)
_SUPPORTED = record("", ("resource",), group=GROUP, resource=NAME, defaultConfig=_DEFAULT)
SCHEMA: Schema = record(
    _ABOUT,
    ("spec",),
    spec=record(
        _SPEC,
        addOnMeta=ADD_ON_META,
        addOnConfiguration=COORDINATES,
        defaultConfigs=listing(CONFIG, "group", "resource"),
        installStrategy=_STRATEGY,
    ),
    status=record(
        "status represents the current status of the add-on.",
        defaultConfigReferences=listing(_DEFAULT_REFERENCE),
        installProgressions=listing(_PROGRESSION),
    ),
)
V1ALPHA1: Schema = record(
    _ABOUT,
    ("spec",),
    spec=record(
        _SPEC,
        addOnMeta=ADD_ON_META,
        addOnConfiguration=COORDINATES,
        supportedConfigs=listing(_SUPPORTED, "group", "resource"),
        installStrategy=_STRATEGY,
    ),
    status=record(
        "status represents the current status of the add-on.",
        defaultconfigReferences=listing(_DEFAULT_REFERENCE),
        installProgressions=listing(_PROGRESSION),
    ),
)


def _spec(*path: str) -> str:
    return f"Custom resource definition column (in JSONPath format): .spec.{'.'.join(path)}"


def _display_name(row: TableRow) -> str | None:
    return doc.mapping(row.document, "spec", "addOnMeta").get("displayName")


def _crd_name(row: TableRow) -> str | None:
    return doc.mapping(row.document, "spec", "addOnConfiguration").get("crdName")


_DISPLAY_NAME = Column("DISPLAY NAME", _display_name, description=_spec("addOnMeta", "displayName"))
_CRD_NAME = Column("CRD NAME", _crd_name, description=_spec("addOnConfiguration", "crdName"))
_V1ALPHA1 = ServedVersion(
    "v1alpha1",
    V1ALPHA1,
    versions.definition_shown,
    versions.definition_stored,
    columns=(_DISPLAY_NAME, _CRD_NAME),
)


def cluster_management_add_on(group_suffix: str) -> Resource:
    return Resource(
        group=f"addon.{group_suffix}",
        version="v1beta1",
        name="clustermanagementaddons",
        kind="ClusterManagementAddOn",
        short_names=("cma", "cmas"),
        schema=SCHEMA,
        versions=(_V1ALPHA1,),
        subresources=(STATUS,),
        columns=(_DISPLAY_NAME,),
        counts_generations=True,
    )
