"""ManagedClusterAddOn and ClusterManagementAddOn as OCM serves them, in v1beta1 (stored) and v1alpha1."""

from collections.abc import Callable, Mapping

from hub.api.managedclusteraddons import versions
from hub.api.meta import document as doc
from hub.api.query.selection import ADD_ON_ALIASES, ADD_ON_FIELDS, of_conditions
from hub.registry.generic.definition import ResourceDefinition
from hub.registry.generic.schemas import (
    CONDITIONS,
    DNS_LABEL,
    INT32,
    INT64,
    NAME,
    TEXT,
    TEXTS,
    Schema,
    cell,
    condition_cell,
    condition_column,
    crd_path,
    described,
    listing,
    record,
)
from hub.registry.managedclusteraddons import service as addons
from machinery.apiserver.resource import STATUS, Column, Resource, ServedVersion, TableRow, age_of

GROUP = {**TEXT, "default": ""}
CONFIG = record("", ("name", "resource"), group=GROUP, resource=NAME, namespace=TEXT, name=NAME)
CONFIG_KIND = record("", ("resource",), group=GROUP, resource=NAME)
SPEC_HASH = record("", ("name",), namespace=TEXT, name=NAME, specHash=TEXT)
COORDINATES = record("Deprecated, of v1alpha1.", crdName=TEXT, crName=TEXT, lastObservedGeneration={"type": "integer"})
ADD_ON_META = record("What people are shown of the add-on.", displayName=TEXT, description=TEXT)
_DRIVER = {**TEXT, "enum": ["csr", "token"]}
_SIGNER_PATTERN = r"^([a-z0-9][a-z0-9-]*[a-z0-9]\.)+[a-z]+\/[a-z0-9-\.]+$"
_SIGNER_NAME = {**TEXT, "minLength": 5, "maxLength": 571, "pattern": _SIGNER_PATTERN}
_SUBJECT = record("The subject of the agent's certificate.", user=TEXT, groups=TEXTS, organizationUnits=TEXTS)
_REGISTRATION = record(
    "How the add-on's agent identifies itself: with a client certificate for the hub, or another signer's.",
    ("type",),
    type={**TEXT, "enum": [versions.KUBE_CLIENT, versions.CUSTOM_SIGNER]},
    kubeClient=record("", subject=_SUBJECT, driver=_DRIVER),
    customSigner=record("", ("signerName",), signerName=_SIGNER_NAME, subject=_SUBJECT),
)
_OLD_REGISTRATION = record(
    "A certificate that the add-on's agent has: of which signer, with which subject.",
    ("signerName",),
    signerName=_SIGNER_NAME,
    subject=record("", user=TEXT, groups=TEXTS, organizationUnit=TEXTS),
)
_ADDON_REFERENCE = record(
    "A configuration in use.",
    ("resource",),
    group=GROUP,
    resource=NAME,
    namespace=TEXT,
    name=NAME,
    lastObservedGeneration=INT64,
    desiredConfig=SPEC_HASH,
    lastAppliedConfig=SPEC_HASH,
)
_RELATED = record("", ("group", "name", "resource"), group=TEXT, resource=TEXT, namespace=TEXT, name=TEXT)
_ADDON = "ManagedClusterAddOn represents the desired state and current status of an add-on of one managed cluster."
_ADDON_SPEC = "spec holds configuration that could apply to any add-on."
_CONFIGS = listing(CONFIG, description="configs is a list of add-on configurations.")
_INSTALL_NAMESPACE = described(DNS_LABEL, "Deprecated: where on the managed cluster the agent is installed.")


def _status(registration: Schema) -> Schema:
    return record(
        "status represents the current status of the add-on.",
        namespace=described(TEXT, "namespace on the managed cluster for the add-on's secret and lease."),
        conditions=CONDITIONS,
        registrations=listing(registration, description="registrations say how the add-on's agent registers to the hub."),
        addOnMeta=ADD_ON_META,
        addOnConfiguration=COORDINATES,
        configReferences=listing(_ADDON_REFERENCE),
        supportedConfigs=listing(CONFIG_KIND, "group", "resource"),
        relatedObjects=listing(_RELATED),
        healthCheck=record("", mode={**TEXT, "enum": ["Lease", "Customized"], "default": "Lease"}),
        kubeClientDriver=described(_DRIVER, "The agent's driver, where no registration names it."),
    )


_SPEC = record(_ADDON_SPEC, configs=_CONFIGS)
_SPEC_V1ALPHA1 = record(_ADDON_SPEC, configs=_CONFIGS, installNamespace=_INSTALL_NAMESPACE)
ADDON_SCHEMA = record(_ADDON, ("spec",), spec=_SPEC, status=_status(_REGISTRATION))
ADDON_V1ALPHA1 = record(_ADDON, ("spec",), spec=_SPEC_V1ALPHA1, status=_status(_OLD_REGISTRATION))


def _available(part: str) -> Callable[[TableRow], str]:
    return lambda row: str(condition_cell("Available", part)(row) or "")


def _since(row: TableRow) -> str:
    return age_of(_available("lastTransitionTime")(row), row.now)


def _identified(row: TableRow) -> str:
    """Returns the type of each registration: how the add-on's agent authenticates."""
    registrations = doc.sequence(row.document, "status", "registrations")
    return ",".join(str(entry.get("type")) for entry in registrations if isinstance(entry, Mapping))


_NAMESPACE = "On the managed cluster, of its secret and lease."
_WIDE = (
    Column("Since", _since, description="In that state.", priority=1),
    Column("Reason", _available("reason"), description="Why it is Available or not.", priority=1),
    Column("Registrations", _identified, description="How its agent identifies itself.", priority=1),
    Column("Namespace", cell("status", "namespace"), description=_NAMESPACE, priority=1),
    Column("Message", _available("message"), description="What its agent says.", priority=1),
)


MANAGED_CLUSTER_ADD_ON = ResourceDefinition(
    Resource(
        group="addon",
        version="v1beta1",
        name="managedclusteraddons",
        kind="ManagedClusterAddOn",
        short_names=("mca", "mcas"),
        namespaced=True,
        schema=ADDON_SCHEMA,
        versions=(ServedVersion("v1alpha1", ADDON_V1ALPHA1, versions.add_on_shown, versions.add_on_stored),),
        subresources=(STATUS,),
        columns=(*(condition_column(kind, kind) for kind in ("Available", "Degraded", "Progressing")), *_WIDE),
        counts_generations=True,
        selectable=of_conditions,
        selectable_names=ADD_ON_FIELDS,
        field_aliases=ADD_ON_ALIASES,
    ),
    put=addons.put,
)


_SHARE = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "pattern": "^((100|[0-9]{1,2})%|[0-9]+)$",
    "x-kubernetes-int-or-string": True,
}
_PATIENCE: dict[str, Schema] = {
    "maxFailures": {**_SHARE, "default": 0},
    "minSuccessTime": {**TEXT, "default": "0"},
    "progressDeadline": {**TEXT, "default": "None", "pattern": "^(([0-9])+[h|m|s])|None$"},
}
_GROUPS = listing(record("", groupIndex=INT32, groupName=TEXT))
_ROLLOUT = {
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
_STRATEGY = {
    **record(
        "installStrategy says on which clusters the add-on is installed by itself.",
        type={**TEXT, "default": "Manual", "enum": ["Manual", "Placements"]},
        placements=listing(_PLACEMENT, "namespace", "name"),
    ),
    "default": {"type": "Manual"},
}
_DEFAULT_REFERENCE = record("", ("resource",), group=GROUP, resource=NAME, desiredConfig=SPEC_HASH)
_HASHES = dict.fromkeys(("desiredConfig", "lastKnownGoodConfig", "lastAppliedConfig"), SPEC_HASH)
_DEFINITION_REFERENCE = record("", ("resource",), group=GROUP, resource=NAME, **_HASHES)
_PROGRESSION = record(
    "", ("name", "namespace"), namespace=NAME, name=NAME, configReferences=listing(_DEFINITION_REFERENCE), conditions=CONDITIONS
)
_SUMMARY = "ClusterManagementAddOn represents the registration of an add-on to the hub; ManagedClusterAddOns bear its name."
_DEFAULT = record("", ("name",), namespace=TEXT, name=NAME)
_SUPPORTED = record("", ("resource",), group=GROUP, resource=NAME, defaultConfig=_DEFAULT)


def _definition(configs: str, config: Schema, references: str) -> Schema:
    """Returns the schema; the versions differ in the names of two lists and in the form of a configuration."""
    spec = record(
        "spec represents the desired configuration of the add-on.",
        addOnMeta=ADD_ON_META,
        addOnConfiguration=COORDINATES,
        installStrategy=_STRATEGY,
        **{configs: listing(config, "group", "resource")},
    )
    status = record(
        "status represents the current status of the add-on.",
        installProgressions=listing(_PROGRESSION),
        **{references: listing(_DEFAULT_REFERENCE)},
    )
    return record(_SUMMARY, ("spec",), spec=spec, status=status)


DEFINITION_SCHEMA = _definition("defaultConfigs", CONFIG, "defaultConfigReferences")
DEFINITION_V1ALPHA1 = _definition("supportedConfigs", _SUPPORTED, "defaultconfigReferences")
_DISPLAY_NAME, _CRD_NAME = (
    Column(name, cell("spec", *path), description=crd_path(".".join(("", "spec", *path))))
    for name, path in (("DISPLAY NAME", ("addOnMeta", "displayName")), ("CRD NAME", ("addOnConfiguration", "crdName")))
)
_SHOWN, _STORED = versions.definition_shown, versions.definition_stored
_V1ALPHA1 = ServedVersion("v1alpha1", DEFINITION_V1ALPHA1, _SHOWN, _STORED, columns=(_DISPLAY_NAME, _CRD_NAME))


CLUSTER_MANAGEMENT_ADD_ON = ResourceDefinition(
    Resource(
        group="addon",
        version="v1beta1",
        name="clustermanagementaddons",
        kind="ClusterManagementAddOn",
        short_names=("cma", "cmas"),
        schema=DEFINITION_SCHEMA,
        versions=(_V1ALPHA1,),
        subresources=(STATUS,),
        columns=(_DISPLAY_NAME,),
        counts_generations=True,
    ),
)
