"""The hub's own policy for attestation: whether each cluster must prove its identity, and the issuers that the hub knows.

Bootstrap credentials can demand attestation without this extension. The list of issuers is a file that may change at run time.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hub.access.attestations import AttestationPolicy, KnownIssuer, flaws
from hub.api.bootstrapcredentials import ANY_SUBJECT, AttestationRequirement
from hub.composition.core import HubCore
from hub.extensions.settings import AttestationSettings
from machinery.errors import InvalidError
from machinery.meta import bounded_yaml as boundedyaml
from machinery.meta.bounded_yaml import YamlError
from machinery.meta.urls import AllowedUrls

FIELDS = frozenset(("issuer", "clusterNames", "keysFile", "certificateAuthorityFile", "audience", "subject"))


async def install(core: HubCore) -> None:
    """Set the hub's policy for attestation. Raises InvalidError for an unusable list of issuers."""
    settings = core.context.settings
    if not isinstance(settings, AttestationSettings):
        return
    file = settings.attestation_issuers
    issuers = partial(read_issuers, file) if file is not None else tuple
    allowed = AllowedUrls(settings.attestation_allowed_issuers)
    core.attestation = AttestationPolicy(settings.attestation == "required", settings.attestation_audience, issuers, allowed)
    core.attestation.issuers()


def read_issuers(file: Path) -> Sequence[KnownIssuer]:
    """Return the issuers that the file lists now. Raises InvalidError with the file's name and the flaw."""
    try:
        document = boundedyaml.load(file.read_bytes())
    except (OSError, YamlError) as error:
        why = getattr(error, "strerror", "") or f"it is no YAML: {error}"
        raise InvalidError(f"--attestation-issuers {file} cannot be read: {why}") from None
    listed = document.get("issuers") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise InvalidError(f"--attestation-issuers {file} has no list `issuers`")
    return [_issuer(file, entry) for entry in listed]


def _issuer(file: Path, entry: Any) -> KnownIssuer:
    if not isinstance(entry, dict) or not isinstance(entry.get("issuer"), str) or not set(entry) <= FIELDS:
        known = ", ".join(sorted(FIELDS - {"issuer"}))
        raise InvalidError(f"--attestation-issuers {file}: an entry needs an issuer, and may also have only {known}")
    names = entry.get("clusterNames") or []
    if not isinstance(names, list):
        raise InvalidError(f"--attestation-issuers {file}: clusterNames is a list of patterns")
    demand = AttestationRequirement(
        entry["issuer"],
        _content(file, entry.get("keysFile")),
        _content(file, entry.get("certificateAuthorityFile")),
        str(entry.get("audience") or ""),
        str(entry.get("subject") or ANY_SUBJECT),
    )
    for field, why in flaws(demand):
        raise InvalidError(f"--attestation-issuers {file}: issuer {demand.issuer}: {field}: {why}")
    return KnownIssuer(demand, tuple(map(str, names)))


def _content(file: Path, name: Any) -> str:
    if not name:
        return ""
    try:
        return (file.parent / str(name)).read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "") or "it is not UTF-8 text"
        raise InvalidError(f"--attestation-issuers {file}: {name} cannot be read: {why}") from None
