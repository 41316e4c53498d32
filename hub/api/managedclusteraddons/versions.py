"""Conversion of add-ons between addon/v1alpha1 and addon/v1beta1, the stored version.

As in OCM, an annotation stores the install namespace, and a reserved name marks a supported config without a default. Other
fields that v1beta1 lacks keep their v1alpha1 name in the stored document. A conversion loses nothing of a valid object; an
empty `kubeClient` equals an absent one. Source: OCM's api repository, addon/v1beta1/conversion.go.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hub.api.meta import document as doc
from machinery.identity import SIGNER
from machinery.meta.objects import Document

INSTALL_NAMESPACE = "addon.open-cluster-management.io/v1alpha1-install-namespace"
DEFAULT_NAMESPACE = "open-cluster-management-agent-addon"
KUBE_CLIENT, CUSTOM_SIGNER = "kubeClient", "customSigner"
NO_DEFAULT = "__reserved_no_default__"
"""Name that marks a config without a default, as in OCM. No object can have this name."""

Fields = dict[str, Any]


def add_on_shown(stored: Document) -> Fields:
    """Convert a stored ManagedClusterAddOn to v1alpha1."""
    notes = doc.annotations(stored)
    namespace = notes.pop(INSTALL_NAMESPACE, DEFAULT_NAMESPACE)
    shown = doc.with_metadata(stored, annotations=notes or None)
    shown["spec"] = {**doc.mapping(stored, "spec"), "installNamespace": namespace}
    if "status" not in stored:
        return shown
    status = shown["status"] = dict(doc.mapping(stored, "status"))
    if "registrations" in status:
        registrations = _entries(status["registrations"])
        status["registrations"] = [_registration_shown(entry) for entry in registrations]
        drivers = (doc.mapping(entry, KUBE_CLIENT).get("driver") for entry in registrations)
        if driver := next((each for each in drivers if each), None):
            status["kubeClientDriver"] = driver
    if "configReferences" in status:  # in v1alpha1 the config's name occurs twice
        references = ((entry, doc.mapping(entry, "desiredConfig")) for entry in _entries(status["configReferences"]))
        status["configReferences"] = [{**_named(desired), **entry} for entry, desired in references]
    return shown


def add_on_stored(shown: Document) -> Fields:
    """Convert a ManagedClusterAddOn from v1alpha1 to the stored version."""
    spec, notes = dict(doc.mapping(shown, "spec")), doc.annotations(shown)
    namespace = spec.pop("installNamespace", None)
    if namespace is not None:
        notes.pop(INSTALL_NAMESPACE, None)
    if namespace not in (None, DEFAULT_NAMESPACE):
        notes[INSTALL_NAMESPACE] = namespace
    stored = {**doc.with_metadata(shown, annotations=notes or None), "spec": spec}
    if "status" not in shown:
        return stored
    status = stored["status"] = dict(doc.mapping(shown, "status"))
    if "registrations" in status:
        driver, registrations = status.get("kubeClientDriver"), _entries(status["registrations"])
        status["registrations"] = [_registration_stored(entry, driver) for entry in registrations]
        if any(entry["type"] == KUBE_CLIENT for entry in status["registrations"]):
            status.pop("kubeClientDriver", None)
    if "configReferences" in status:
        references = ((entry, _named(doc.mapping(entry, "desiredConfig"))) for entry in _entries(status["configReferences"]))
        status["configReferences"] = [
            {name: value for name, value in entry.items() if name not in _REFERENT or value != desired.get(name)}
            for entry, desired in references
        ]
    return stored


def _registration_shown(stored: Mapping[str, Any]) -> Fields:
    custom, kube = doc.mapping(stored, CUSTOM_SIGNER), stored.get("type") == KUBE_CLIENT
    subject = doc.mapping(stored, KUBE_CLIENT if kube else CUSTOM_SIGNER, "subject")
    shown: Fields = {"signerName": SIGNER if kube else str(custom.get("signerName") or "")}
    if subject:
        shown["subject"] = _renamed(subject, "organizationUnits", "organizationUnit")
    return shown


def _registration_stored(shown: Mapping[str, Any], driver: Any) -> Fields:
    subject = _renamed(doc.mapping(shown, "subject"), "organizationUnit", "organizationUnits")
    part = {"subject": subject} if subject else {}
    if shown.get("signerName") != SIGNER:
        return {"type": CUSTOM_SIGNER, CUSTOM_SIGNER: {"signerName": shown.get("signerName"), **part}}
    kube = {**part, **({"driver": driver} if driver else {})}
    return {"type": KUBE_CLIENT, **({KUBE_CLIENT: kube} if kube else {})}


_REFERENT = ("name", "namespace")


def _named(config: Mapping[str, Any]) -> Fields:
    return {name: config[name] for name in _REFERENT if name in config}


def definition_shown(stored: Document) -> Fields:
    """Convert a stored ClusterManagementAddOn to v1alpha1."""
    spec, shown = dict(doc.mapping(stored, "spec")), dict(stored)
    if "defaultConfigs" in spec:
        spec["supportedConfigs"] = [_config_shown(entry) for entry in _entries(spec.pop("defaultConfigs"))]
    shown["spec"] = spec
    return _renamed_status(shown, "defaultConfigReferences", "defaultconfigReferences")


def definition_stored(shown: Document) -> Fields:
    """Convert a ClusterManagementAddOn from v1alpha1 to the stored version."""
    spec, stored = dict(doc.mapping(shown, "spec")), dict(shown)
    if "supportedConfigs" in spec:
        spec["defaultConfigs"] = [_config_stored(entry) for entry in _entries(spec.pop("supportedConfigs"))]
    stored["spec"] = spec
    return _renamed_status(stored, "defaultconfigReferences", "defaultConfigReferences")


def _config_shown(stored: Mapping[str, Any]) -> Fields:
    shown = {name: value for name, value in stored.items() if name not in _REFERENT}
    default = _named(stored)
    return shown if default.get("name") in (None, NO_DEFAULT) else {**shown, "defaultConfig": default}


def _config_stored(shown: Mapping[str, Any]) -> Fields:
    stored = {name: value for name, value in shown.items() if name != "defaultConfig"}
    return {**stored, **(doc.mapping(shown, "defaultConfig") or {"name": NO_DEFAULT})}


def _renamed_status(document: Fields, old: str, new: str) -> Fields:
    status = doc.mapping(document, "status")
    return {**document, "status": _renamed(status, old, new)} if old in status else document


def _renamed(fields: Mapping[str, Any], old: str, new: str) -> Fields:
    return {new if name == old else name: value for name, value in fields.items()}


def _entries(value: Any) -> Sequence[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []
