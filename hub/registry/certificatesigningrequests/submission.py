"""Submission of a CSR by an agent, and the check of its requester."""

import secrets

from hub.api import certificatesigningrequests as csr_rules
from hub.api.certificates import Purpose
from hub.api.certificatesigningrequests import Submission, checks
from hub.api.managed_fields import AGENT_WRITER
from hub.api.managedclusteraddons import addon as addons
from hub.api.managedclusters import cluster as clusters
from hub.api.meta import document as doc
from hub.api.meta.change import ADDON_DEFINITIONS, ADDONS, MANAGED_CLUSTERS, REQUESTS
from hub.ports import Transaction
from hub.registry import certificates
from hub.registry.certificatesigningrequests import credential_uses, service as request_objects
from hub.registry.generic.objects import write
from machinery import identity
from machinery.errors import AlreadyExistsError, ForbiddenError
from machinery.meta.objects import Key

SUFFIX_LENGTH = 5


def submit(tx: Transaction, submission: Submission, *, is_checked: bool = False) -> str:
    """Store an agent's CSR after strict checks; return metadata.name. Idempotent for the same requester and CSR.

    `is_checked`: the caller has already checked the requester. Raises InvalidError, TooLargeError, ForbiddenError,
    TooManyRequestsError, and AlreadyExistsError if another cluster has the name.
    """
    cluster, agent, addon, requester = submission.cluster, submission.agent, submission.addon, submission.requester
    identity.cluster_name(cluster)
    identity.agent_id(agent)
    facts = certificates.checked_request(submission.request)
    if not is_checked:
        _check_requester(tx, submission)
    if addon is None:
        checks.check_subject(facts, identity.agent_subject(cluster, agent))
    else:
        checks.check_subject(facts, *registered(tx, cluster, addon.name, addon.signer_name))
    checks.check_key_is_new(cluster, tx.certificates.of_key(facts.key_hash))
    suffix = "".join(secrets.choice(identity.AGENT_ID_ALPHABET) for _ in range(SUFFIX_LENGTH))
    document = csr_rules.submitted_document(submission, csr_rules.name_prefix(submission) + suffix)
    asked, known = csr_rules.fingerprint(document), request_objects.of_cluster(tx, cluster)
    name = next((stored.key.name for stored in known if csr_rules.fingerprint(stored.document) == asked), "")
    if not name:
        request_objects.check_room(document, known)
        write(tx, REQUESTS, document, None, requester.user, writer=AGENT_WRITER)
        name = doc.name(document)
    if requester.purpose is Purpose.BOOTSTRAP and requester.credential is not None:
        credential_uses.hold(tx, requester.credential, cluster, agent, name)
    return name


def _check_requester(tx: Transaction, submission: Submission) -> None:
    """Raise ForbiddenError unless the requester may request certificates for this cluster.

    Raises AlreadyExistsError if another cluster has the name.
    """
    requester, cluster = submission.requester, submission.cluster
    if not requester.is_open(tx.now):
        raise ForbiddenError("the certificate of the requester is revoked or not valid now")
    if requester.purpose is Purpose.BOOTSTRAP and requester.credential is not None and submission.addon is None:
        credential_uses.admit(tx, requester.credential, cluster, submission.agent, submission.attested)
        stored = tx.objects.get(MANAGED_CLUSTERS, Key("", cluster))
        if stored is not None and not clusters.is_same_cluster(stored.document, submission.cluster_uid):
            raise AlreadyExistsError(
                f'the cluster name "{cluster}" belongs to another cluster: register under another name, '
                "or delete the other ManagedCluster first"
            )
    elif requester.purpose is not Purpose.AGENT:
        raise ForbiddenError(f"a certificate of purpose {requester.purpose} cannot request this certificate")
    elif requester.cluster != cluster or requester.agent != submission.agent:
        raise ForbiddenError(
            f'the certificate request is for agent "{submission.agent}" of cluster "{cluster}", '
            f'but agent "{requester.agent}" of cluster "{requester.cluster}" sent it'
        )


def registered(
    tx: Transaction, cluster: identity.ClusterName, addon: identity.AddOnName, signer: str
) -> tuple[identity.CertificateSubject, tuple[str, ...]]:
    """Return subject and DNS names of an add-on's certificate, from its registration. Raises ForbiddenError."""
    stored = tx.objects.get(ADDONS, Key(cluster, addon))
    subject = addons.registered_subject(stored.document, cluster, signer) if stored else None
    if stored is None or subject is None:
        raise ForbiddenError(f'add-on "{addon}" of cluster "{cluster}" has no registration with signer "{signer}"')
    if doc.is_deleting(stored.document):
        raise ForbiddenError(f'add-on "{addon}" of cluster "{cluster}" is being deleted')
    if signer == identity.SIGNER:
        definition = tx.objects.get(ADDON_DEFINITIONS, Key("", addon))
        foreign = addons.foreign_names(subject, cluster, addon, definition.document if definition else None)
        if foreign:
            raise ForbiddenError(
                f'add-on "{addon}" of cluster "{cluster}" is registered as {", ".join(foreign)[:400]}: not its own names; '
                f"register it under its own, or list them in the annotation {addons.SUBJECTS} of its ClusterManagementAddOn"
            )
    return subject, addons.alternative_names(addon)
