"""Revocation, a kind of this project: revokes, and records who revoked what, when, why, and what ended with it."""

from hub.api import revocations as rules
from hub.api.meta import document as doc
from hub.https_door.kinds.schemas import DNS_LABEL, MOMENT, TEXT, Schema, listing, record
from machinery.apiserver.resource import AGE, Column, Resource, TableRow
from machinery.apiserver.storage import Actor, Document

_COUNT: Schema = {"type": "integer", "format": "int64"}
_SPEC = record(
    "What is revoked: one of cluster, serial and bootstrapCredential. It cannot be changed, nor taken back.",
    cluster={**DNS_LABEL, "description": "All that the cluster and its add-ons hold, and its own bootstrap credentials."},
    agent={**TEXT, "maxLength": 253, "description": "This agent of the cluster alone."},
    serial={
        **TEXT,
        "maxLength": 40,
        "pattern": "^[0-9a-f]+$",
        "description": "A certificate's serial in lower-case hex, and with it all certificates over the same key.",
    },
    bootstrapCredential={**TEXT, "maxLength": 63, "description": "The id of a bootstrap credential."},
    reason={
        **TEXT,
        "enum": [str(each) for each in rules.Reason],
        "default": str(rules.Reason.UNSPECIFIED),
        "description": "One of RFC 5280's: it goes into the revocation list.",
    },
    message={**TEXT, "maxLength": 1024, "description": "Why, in words for people."},
)
_CERTIFICATE = record("", serial=TEXT, purpose=TEXT, cluster=TEXT, agent=TEXT, addon=TEXT, notAfter=MOMENT)
_STATUS = record(
    "What ended.",
    revokedBy=TEXT,
    revokedAt={**MOMENT, "description": "Bootstrap credentials that were made before do not bring the cluster back."},
    cluster=TEXT,
    clusterUID=TEXT,
    certificatesRevoked={**_COUNT, "description": "Those that would still be good."},
    certificates=listing(_CERTIFICATE, description=f"The first {rules.MAX_SHOWN} of them."),
    bootstrapCredentials=listing(TEXT),
    requestsRefused=listing(TEXT, description="Certificate requests that were not issued yet."),
    serviceAccountsEnded={**_COUNT, "description": "ServiceAccounts of add-ons, whose tokens are worth nothing any more."},
)
SCHEMA: Schema = record(
    "Revocation takes back what opens the hub, at once and on every replica: create one to revoke.",
    ("spec",),
    spec=_SPEC,
    status=_STATUS,
)


def _ended(row: TableRow) -> str:
    status = doc.mapping(row.document, "status")
    credentials = len(status.get("bootstrapCredentials") or ())
    certificates = int(status.get("certificatesRevoked") or 0)
    return f"{certificates} certificates" + (f", {credentials} credentials" if credentials else "")


_COLUMNS = (
    Column("Subject", lambda row: rules.subject_of(row.document), description="What was revoked."),
    Column("Reason", lambda row: doc.mapping(row.document, "spec").get("reason"), description="Why."),
    Column("By", lambda row: doc.mapping(row.document, "status").get("revokedBy"), description="Who did it."),
    Column("Ended", _ended, description="What ended with it."),
    Column("Message", lambda row: doc.mapping(row.document, "spec").get("message"), description="Why, in words.", priority=1),
    AGE,
)


def _without_status(new: Document, _actor: Actor, _now: object) -> Document:
    """Removes the status, which only the hub writes."""
    return {name: part for name, part in new.items() if name != "status"}


def revocation(group_suffix: str) -> Resource:
    return Resource(
        group=f"hub.{group_suffix}",
        version="v1alpha1",
        name="revocations",
        kind="Revocation",
        verbs=("create", "get", "list", "watch"),
        schema=SCHEMA,
        validate=lambda new, _old: rules.violations(new),
        prepare_create=_without_status,
        selectable=rules.selectable,
        selectable_names=("spec.cluster", "spec.agent", "spec.serial", "spec.bootstrapCredential"),
        columns=_COLUMNS,
    )
