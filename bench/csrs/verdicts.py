"""Checks whether an issued certificate is allowed. It reads the signed bytes, and shares no code with the hub's rules."""

from base64 import b64decode
from datetime import timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bench.csrs.world import EDGE, OTHER, Attempt, Outcome, World
from hub.api.certificates import CertificateRecord, Purpose

REFUSALS = frozenset(
    (
        *("InvalidError", "TooLargeError", "ForbiddenError", "TooManyRequestsError", "AlreadyExistsError", "NotFoundError"),
        *("Failed", "Approved"),
    )
)
"""Results without a certificate. `Approved`: the request is for another signer."""
COMMON_NAME, ORGANIZATION, NAMES = "2.5.4.3", "2.5.4.10", "2.5.29.17"
ALWAYS = {"2.5.29.19", "2.5.29.15", "2.5.29.37", "2.5.29.14", "2.5.29.35"}
RECOVERY_ANNOTATION = "hub.open-cluster-management.io/recovery-certificate"
BACKDATED, LONGEST, LONGEST_RECOVERY = timedelta(minutes=5), timedelta(days=30), timedelta(days=90)
PREFIX, EVERY = "system:open-cluster-management:", "system:open-cluster-management:managed-clusters"


def judged(attempt: Attempt, outcome: Outcome, world: World) -> list[str]:
    """Return the findings about a result; empty: it is correct."""
    if outcome.result != "Issued":
        wrong = [] if outcome.result in REFUSALS else [f"it ended as {outcome.result}"]
        return [*wrong, *(["a record without a certificate"] if outcome.records else [])]
    found = ["issued twice"] if outcome.again else []
    if attempt.asker.barred:
        found.append(f"signed for {attempt.asker.name}")
    leaf = b64decode(outcome.request["status"]["certificate"])
    recovery = outcome.request["metadata"].get("annotations", {}).get(RECOVERY_ANNOTATION, "").encode()
    by_serial = {record.serial: record for record in outcome.records}
    certificates = [x509.load_pem_x509_certificate(pem) for pem in (leaf, recovery) if pem]
    if {certificate.serial_number for certificate in certificates} != set(by_serial):
        found.append("the records are not those of the signed certificates")
    for certificate in certificates:
        found += _certificate(certificate, by_serial.get(certificate.serial_number), attempt, world)  # type: ignore[call-overload]
    return found


def _certificate(certificate: x509.Certificate, record: CertificateRecord | None, attempt: Attempt, world: World) -> list[str]:
    if record is None:
        return ["a signature without a record"]
    der, spki = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    found = {extension.oid.dotted_string: extension for extension in certificate.extensions}
    now = world.clock.now()
    longest = LONGEST_RECOVERY if record.purpose is Purpose.RECOVERY else LONGEST
    expected = ALWAYS | ({NAMES} if NAMES in found and record.purpose is Purpose.ADDON else set())
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    allowed = attempt.asker.clusters
    rules = (
        (_may_have(certificate.public_key().public_bytes(der, spki), record, world), "its key may have none"),
        (not allowed or record.cluster in allowed, f"{attempt.asker.name} got one for cluster {record.cluster}"),
        (_words(certificate) == _expected(record), f"its subject is {_words(certificate)}"),
        (set(found) == expected, f"its extensions are {sorted(found)}"),
        ([each.dotted_string for each in usage] == ["1.3.6.1.5.5.7.3.2"], "it is not for a client alone"),
        (not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca, "it is a CA"),
        (now - certificate.not_valid_before_utc == BACKDATED, "it does not begin five minutes before"),
        (timedelta() < certificate.not_valid_after_utc - now <= longest, "it lives too long"),
        (_names(certificate) <= {"work.addon.open-cluster-management.io"}, "it has names of another"),
        (_is_signed(certificate, world), "its signature is not the CA's"),
    )
    return [finding for fine, finding in rules if not fine]


def _may_have(spki: bytes, record: CertificateRecord, world: World) -> bool:
    """Whether the certificate may have this key.

    A replay of a victim's own request may lead to a certificate for the victim's identity, because only the victim can use it.
    """
    if spki == world.keys.own[0].spki:
        return record.cluster == EDGE  # a key belongs to one cluster
    allowed = {pair.spki for pair in world.keys.own}
    return spki in allowed or (spki == world.keys.victims.spki and record.cluster == OTHER)


def _words(certificate: x509.Certificate) -> list[tuple[str, str]]:
    return sorted((part.oid.dotted_string, str(part.value)) for part in certificate.subject)


def _expected(record: CertificateRecord) -> list[tuple[str, str]]:
    cluster = record.cluster
    if record.purpose is Purpose.RECOVERY:
        return [(COMMON_NAME, f"system:recovery:{cluster}:{record.agent}")]
    if record.purpose is Purpose.AGENT:
        return sorted(
            [(COMMON_NAME, f"{PREFIX}{cluster}:{record.agent}"), (ORGANIZATION, f"{PREFIX}{cluster}"), (ORGANIZATION, EVERY)]
        )
    group = f"{PREFIX}cluster:{EDGE}:addon:work"
    return sorted([(COMMON_NAME, f"{group}:agent:work"), (ORGANIZATION, group)])


def _names(certificate: x509.Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {str(name.value) for name in names}


def _is_signed(certificate: x509.Certificate, world: World) -> bool:
    key = x509.load_pem_x509_certificate(world.authority.certificate).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    key.verify(certificate.signature, certificate.tbs_certificate_bytes, ec.ECDSA(hashes.SHA256()))
    return True
