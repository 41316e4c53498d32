"""Conversion of add-ons between addon/v1alpha1 and addon/v1beta1, the stored version.

Fields that v1beta1 lacks are stored where OCM stores them (an annotation for the install namespace, a reserved name for a
supported config without a default), else under their v1alpha1 name in the stored document. A conversion loses nothing of a
valid object; an empty `kubeClient` equals none. Source: OCM's api repository, addon/v1beta1/conversion.go.
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
"""Stands for a config without a default, as in OCM; no object can have this name."""

Fields = dict[str, Any]


def add_on_shown(stored: Document) -> Fields:
    """A stored ManagedClusterAddOn in v1alpha1."""
    notes = doc.annotations(stored)
    namespace = notes.pop(INSTALL_NAMESPACE, DEFAULT_NAMESPACE)
    shown = doc.with_metadata(stored, annotations=notes or None)
    shown["spec"] = {**doc.mapping(stored, "spec"), "installNamespace": namespace}
    if "status" in stored:
        shown["status"] = _status_shown(doc.mapping(stored, "status"))
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
    if "status" in shown:
        stored["status"] = _status_stored(doc.mapping(shown, "status"))
    return stored


def _status_shown(stored: Mapping[str, Any]) -> Fields:
    shown = dict(stored)
    if "registrations" in stored:
        registrations = _entries(stored["registrations"])
        shown["registrations"] = [_registration_shown(entry) for entry in registrations]
        drivers = (doc.mapping(entry, KUBE_CLIENT).get("driver") for entry in registrations)
        if driver := next((each for each in drivers if each), None):
            shown["kubeClientDriver"] = driver
    if "configReferences" in stored:
        shown["configReferences"] = [_reference_shown(entry) for entry in _entries(stored["configReferences"])]
    return shown


def _status_stored(shown: Mapping[str, Any]) -> Fields:
    stored = dict(shown)
    if "registrations" in shown:
        driver, registrations = shown.get("kubeClientDriver"), _entries(shown["registrations"])
        stored["registrations"] = [_registration_stored(entry, driver) for entry in registrations]
        if any(entry["type"] == KUBE_CLIENT for entry in stored["registrations"]):
            stored.pop("kubeClientDriver", None)
    if "configReferences" in shown:
        stored["configReferences"] = [_reference_stored(entry) for entry in _entries(shown["configReferences"])]
    return stored


def _registration_shown(stored: Mapping[str, Any]) -> Fields:
    custom = doc.mapping(stored, CUSTOM_SIGNER)
    kube = stored.get("type") == KUBE_CLIENT
    subject = doc.mapping(stored, KUBE_CLIENT if kube else CUSTOM_SIGNER, "subject")
    signer = SIGNER if kube else str(custom.get("signerName") or "")
    renamed = {"organizationUnit" if name == "organizationUnits" else name: value for name, value in subject.items()}
    return {"signerName": signer, **({"subject": renamed} if renamed else {})}


def _registration_stored(shown: Mapping[str, Any], driver: Any) -> Fields:
    given = doc.mapping(shown, "subject")
    subject = {"organizationUnits" if name == "organizationUnit" else name: value for name, value in given.items()}
    told = {"subject": subject} if subject else {}
    if shown.get("signerName") != SIGNER:
        return {"type": CUSTOM_SIGNER, CUSTOM_SIGNER: {"signerName": shown.get("signerName"), **told}}
    kube = {**told, **({"driver": driver} if driver else {})}
    return {"type": KUBE_CLIENT, **({KUBE_CLIENT: kube} if kube else {})}


_REFERENT = ("name", "namespace")


def _reference_shown(stored: Mapping[str, Any]) -> Fields:
    """In v1alpha1 the config's name occurs twice."""
    desired = doc.mapping(stored, "desiredConfig")
    return {**{name: desired[name] for name in _REFERENT if name in desired}, **stored}


def _reference_stored(shown: Mapping[str, Any]) -> Fields:
    desired = doc.mapping(shown, "desiredConfig")
    return {name: value for name, value in shown.items() if name not in _REFERENT or value != desired.get(name)}


def definition_shown(stored: Document) -> Fields:
    """A stored ClusterManagementAddOn in v1alpha1."""
    spec, shown = dict(doc.mapping(stored, "spec")), dict(stored)
    if "defaultConfigs" in spec:
        spec["supportedConfigs"] = [_config_shown(entry) for entry in _entries(spec.pop("defaultConfigs"))]
    shown["spec"] = spec
    return _renamed_status(shown, "defaultConfigReferences", "defaultconfigReferences")


def definition_stored(shown: Document) -> Fields:
    """A ClusterManagementAddOn in v1alpha1 in stored form."""
    spec, stored = dict(doc.mapping(shown, "spec")), dict(shown)
    if "supportedConfigs" in spec:
        spec["defaultConfigs"] = [_config_stored(entry) for entry in _entries(spec.pop("supportedConfigs"))]
    stored["spec"] = spec
    return _renamed_status(stored, "defaultconfigReferences", "defaultConfigReferences")


def _config_shown(stored: Mapping[str, Any]) -> Fields:
    shown = {name: value for name, value in stored.items() if name not in _REFERENT}
    default = {name: stored[name] for name in _REFERENT if name in stored}
    return shown if default.get("name") in (None, NO_DEFAULT) else {**shown, "defaultConfig": default}


def _config_stored(shown: Mapping[str, Any]) -> Fields:
    stored = {name: value for name, value in shown.items() if name != "defaultConfig"}
    return {**stored, **(doc.mapping(shown, "defaultConfig") or {"name": NO_DEFAULT})}


def _renamed_status(document: Fields, old: str, new: str) -> Fields:
    status = doc.mapping(document, "status")
    if old not in status:
        return document
    return {**document, "status": {new if name == old else name: value for name, value in status.items()}}


def _entries(value: Any) -> Sequence[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []
