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

GROUP = {**TEXT, "default": "", "description": "API group of the configuration."}
RESOURCE = described(NAME, "API resource of the configuration.")
_NAMESPACE = described(TEXT, "Its namespace; empty for a cluster-scoped one.")
_NAME = described(NAME, "Its name.")
CONFIG = record("A configuration.", ("name", "resource"), group=GROUP, resource=RESOURCE, namespace=_NAMESPACE, name=_NAME)
CONFIG_KIND = record("A kind of configuration.", ("resource",), group=GROUP, resource=RESOURCE)


def _hashed(which: str) -> Schema:
    """Returns the schema of a configuration with a hash."""
    parts = {"namespace": _NAMESPACE, "name": _NAME, "specHash": described(TEXT, "Hash of its spec.")}
    return record(f"The configuration that {which}.", ("name",), **parts)


_DESIRED, _APPLIED, _LAST_GOOD = map(_hashed, ("is desired", "the agent applied last", "was last applied without failure"))
COORDINATES = record(
    "Deprecated, of v1alpha1.",
    crdName=described(TEXT, "Name of the CustomResourceDefinition of the configuration."),
    crName=described(TEXT, "Name of the configuration."),
    lastObservedGeneration={"type": "integer", "description": "Its metadata.generation when it was last read."},
)
ADD_ON_META = record(
    "Texts about the add-on for people.",
    displayName=described(TEXT, "Its name."),
    description=described(TEXT, "What it does."),
)
_DRIVER = {
    **TEXT,
    "enum": ["csr", "token"],
    "description": "csr: a client certificate; token: a ServiceAccount token of the hub.",
}
_SIGNER_PATTERN = r"^([a-z0-9][a-z0-9-]*[a-z0-9]\.)+[a-z]+\/[a-z0-9-\.]+$"
_SIGNER_NAME = described({**TEXT, "minLength": 5, "maxLength": 571, "pattern": _SIGNER_PATTERN}, "Name of the signer.")
_USER, _GROUPS = described(TEXT, "The common name."), described(TEXTS, "The organizations.")
_UNITS = described(TEXTS, "The organizational units.")
_SUBJECT = record("The subject of the agent's certificate.", user=_USER, groups=_GROUPS, organizationUnits=_UNITS)
_REGISTRATION = record(
    "How the add-on's agent authenticates: with a credential for the hub, or with a certificate of another signer.",
    ("type",),
    type={**TEXT, "enum": [versions.KUBE_CLIENT, versions.CUSTOM_SIGNER], "description": "Which of the fields below applies."},
    kubeClient=record("A credential for the hub.", subject=_SUBJECT, driver=_DRIVER),
    customSigner=record("A certificate of another signer.", ("signerName",), signerName=_SIGNER_NAME, subject=_SUBJECT),
)
_OLD_REGISTRATION = record(
    "A certificate of the add-on's agent.",
    ("signerName",),
    signerName=_SIGNER_NAME,
    subject=record("The subject of the certificate.", user=_USER, groups=_GROUPS, organizationUnit=_UNITS),
)
_ADDON_REFERENCE = record(
    "A configuration in use.",
    ("resource",),
    group=GROUP,
    resource=RESOURCE,
    namespace=_NAMESPACE,
    name=_NAME,
    lastObservedGeneration=described(INT64, "Its metadata.generation when it was last read."),
    desiredConfig=_DESIRED,
    lastAppliedConfig=_APPLIED,
)
_RELATED = record(
    "An object.",
    ("group", "name", "resource"),
    group=described(TEXT, "API group of the object."),
    resource=described(TEXT, "API resource of the object."),
    namespace=_NAMESPACE,
    name=described(TEXT, "Its name."),
)
_ADDON = "ManagedClusterAddOn represents the desired state and current status of an add-on of one managed cluster."
_ADDON_SPEC = "spec holds configuration that could apply to any add-on."
_CONFIGS = listing(CONFIG, description="configs is a list of add-on configurations.")
_CONDITIONS = (
    "conditions: Available, TokenInfrastructureReady (driver token), ClusterCertificateRotated, and those of the add-on, such "
    "as Degraded and Progressing."
)
_INSTALL_NAMESPACE = described(DNS_LABEL, "Deprecated: where on the managed cluster the agent is installed.")


def _status(registration: Schema) -> Schema:
    return record(
        "status represents the current status of the add-on.",
        namespace=described(TEXT, "namespace on the managed cluster for the add-on's secret and lease."),
        conditions=described(CONDITIONS, _CONDITIONS),
        registrations=listing(registration, description="How the add-on's agent registers at the hub."),
        addOnMeta=ADD_ON_META,
        addOnConfiguration=COORDINATES,
        configReferences=listing(_ADDON_REFERENCE, description="Configurations that the add-on uses."),
        supportedConfigs=listing(
            CONFIG_KIND, "group", "resource", description="Kinds of configurations that the add-on supports."
        ),
        relatedObjects=listing(_RELATED, description="Objects that help to diagnose the add-on."),
        healthCheck=record(
            "How the health is checked.",
            mode={
                **TEXT,
                "enum": ["Lease", "Customized"],
                "default": "Lease",
                "description": "Lease: by the agent's Lease; Customized: by the add-on itself.",
            },
        ),
        kubeClientDriver=described(_DRIVER, "Driver of registrations without one."),
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
    """Returns the types of the registrations."""
    registrations = doc.sequence(row.document, "status", "registrations")
    return ",".join(str(entry.get("type")) for entry in registrations if isinstance(entry, Mapping))


_WIDE = (
    Column("Since", _since, description="Time since the condition Available changed.", priority=1),
    Column("Reason", _available("reason"), description="Reason of the condition Available.", priority=1),
    Column("Registrations", _identified, description="How its agent authenticates.", priority=1),
    Column("Install Namespace", cell("status", "namespace"), description="Namespace on the managed cluster.", priority=1),
    Column("Message", _available("message"), description="Message of the condition Available.", priority=1),
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
    "maxFailures": {
        **_SHARE,
        "default": 0,
        "description": "Failed clusters, as a number or a percentage, that do not stop the rollout.",
    },
    "minSuccessTime": {
        **TEXT,
        "default": "0",
        "description": "Time that a cluster must be healthy before the rollout goes on.",
    },
    "progressDeadline": {
        **TEXT,
        "default": "None",
        "pattern": "^(([0-9])+[h|m|s])|None$",
        "description": "Time after which a cluster that is not healthy has failed.",
    },
}
_DECISION_GROUP = record(
    "A decision group of the placement.",
    groupIndex=described(INT32, "Index of the group."),
    groupName=described(TEXT, "Name of the group."),
)
_FIRST_GROUPS = listing(_DECISION_GROUP, description="Groups that must succeed before all others.")
_ROLLOUT = {
    **record(
        "How changes of the configuration reach the clusters.",
        type={
            **TEXT,
            "default": "All",
            "enum": ["All", "Progressive", "ProgressivePerGroup"],
            "description": "Which of the fields below applies.",
        },
        all=record("All clusters at once.", **_PATIENCE),
        progressive=record(
            "Some clusters at a time.",
            **_PATIENCE,
            mandatoryDecisionGroups=_FIRST_GROUPS,
            maxConcurrency=described(_SHARE, "Clusters at a time, as a number or a percentage."),
        ),
        progressivePerGroup=record("One decision group at a time.", **_PATIENCE, mandatoryDecisionGroups=_FIRST_GROUPS),
    ),
    "default": {"type": "All"},
}
_PLACEMENT = record(
    "A Placement.",
    ("name", "namespace"),
    namespace=described(NAME, "Its namespace."),
    name=_NAME,
    configs=listing(CONFIG, description="Configurations for the clusters of the placement."),
    rolloutStrategy=_ROLLOUT,
)
_STRATEGY = {
    **record(
        "Clusters on which the add-on is installed.",
        type={
            **TEXT,
            "default": "Manual",
            "enum": ["Manual", "Placements"],
            "description": "Manual: by its ManagedClusterAddOn; Placements: on the clusters of the placements.",
        },
        placements=listing(_PLACEMENT, "namespace", "name", description="Placements that select clusters."),
    ),
    "default": {"type": "Manual"},
}
_DEFAULT_REFERENCE = record("A default configuration.", ("resource",), group=GROUP, resource=RESOURCE, desiredConfig=_DESIRED)
_HASHES = {"desiredConfig": _DESIRED, "lastKnownGoodConfig": _LAST_GOOD, "lastAppliedConfig": _APPLIED}
_DEFINITION_REFERENCE = record("A configuration.", ("resource",), group=GROUP, resource=RESOURCE, **_HASHES)
_PROGRESSION = record(
    "The rollout on the clusters of a placement.",
    ("name", "namespace"),
    namespace=described(NAME, "Namespace of the placement."),
    name=described(NAME, "Name of the placement."),
    configReferences=listing(_DEFINITION_REFERENCE, description="The configurations and their state."),
    conditions=CONDITIONS,
)
_SUMMARY = "ClusterManagementAddOn represents the registration of an add-on to the hub; ManagedClusterAddOns have its name."
_DEFAULT = record("The default configuration.", ("name",), namespace=_NAMESPACE, name=_NAME)
_SUPPORTED = record("A kind of configuration.", ("resource",), group=GROUP, resource=RESOURCE, defaultConfig=_DEFAULT)


def _definition(configs: str, config: Schema, references: str) -> Schema:
    """Returns the schema of a version; versions differ in the names of two lists and in the form of a configuration."""
    spec = record(
        "spec represents the desired configuration of the add-on.",
        addOnMeta=ADD_ON_META,
        addOnConfiguration=COORDINATES,
        installStrategy=_STRATEGY,
        **{configs: listing(config, "group", "resource", description="Configurations of clusters that name none.")},
    )
    status = record(
        "status represents the current status of the add-on.",
        installProgressions=listing(_PROGRESSION, description="The rollout by placement."),
        **{references: listing(_DEFAULT_REFERENCE, description="The default configurations in use.")},
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
    )
)
