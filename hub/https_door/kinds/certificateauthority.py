"""CertificateAuthority, a kind of this project: the hub's CAs, the progress of a CA change, and actions that control it."""

from typing import Any

from hub.api.certificateauthorities.authority import Phase
from hub.api.meta import document as doc
from hub.https_door.kinds.schemas import MOMENT, TEXT, Schema, listing, record
from machinery.apiserver.resource import AGE, Answers, Column, Resource, Subresource, TableRow
from machinery.apiserver.storage import Storage

_COUNT: Schema = {"type": "integer", "format": "int32"}
_FLAG: Schema = {"type": "boolean"}
SHOWN = 50
"""Names of clusters in one list."""
_STATUS = record(
    "What the hub knows of it.",
    phase={
        **TEXT,
        "enum": [str(each) for each in Phase],
        "description": "Distributing: trusted, signs nothing yet. Issuing: signs. Outgoing: signs no more, counts still. "
        "Retiring: what it signed recovers agents and does nothing else. Retired: counts for nothing.",
    },
    since={**MOMENT, "description": "When the phase began."},
    fingerprint={**TEXT, "description": "Hex SHA-256 of the certificate in DER."},
    notBefore=MOMENT,
    notAfter={**MOMENT, "description": "No certificate outlives its CA: change it in time."},
    certificate={**TEXT, "description": "PEM."},
    crossSigned={**_FLAG, "description": "Whether the CA before it vouches for it, for agents that know only that one."},
    compromised=_FLAG,
    wish={**TEXT, "description": "What an operator wants of it that is not done yet: Rotate, Proceed or Compromised."},
    wishedBy=TEXT,
    endsAt={**MOMENT, "description": "When it is retired at the latest."},
    signed={
        "type": "object",
        "additionalProperties": _COUNT,
        "description": "Certificates that have not ended, by purpose.",
    },
    agents={**_COUNT, "description": "Accepted clusters whose agent has a certificate."},
    agentsWithoutTrust={**_COUNT, "description": "Of those that say whom they trust, the ones that do not trust this CA."},
    agentsHolding={**_COUNT, "description": "Those whose certificate is of this CA."},
    clustersWithoutTrust=listing(TEXT, description=f"The first {SHOWN} of them."),
    clustersHolding=listing(TEXT, description=f"The first {SHOWN} of them."),
    clustersLeftBehind=listing(
        TEXT, description="Of one that was compromised: clusters whose agent needs a new bootstrap credential since."
    ),
    waitsFor=listing(TEXT, description="What the next step waits for, in words."),
)
SCHEMA: Schema = record("CertificateAuthority is a CA of the hub. The hub makes them.", status=_STATUS)

ACTION_SCHEMA: Schema = record(
    "CertificateAuthorityAction is an operator's word about a CA. The replica that leads carries it out.",
    spec=record(
        "How.",
        withinSeconds={
            "type": "integer",
            "format": "int32",
            "minimum": 0,
            "maximum": 3600,
            "description": "Of one that is compromised: agents that are connected have this long to trust the next CA, "
            "and as long again to renew. 60 without it.",
        },
    ),
    status=record(
        "What came, or comes, of it.",
        phase=TEXT,
        stranded={**_COUNT, "description": "Agents that need a new bootstrap credential if the CA goes at once."},
        strandedClusters=listing(TEXT, description="All of them."),
        silentClusters=listing(
            TEXT,
            description="Of those that can be moved: whose agent has a session, and sent nothing for longer than its lease.",
        ),
        moving={**_COUNT, "description": "Agents that hold a certificate of it and can be moved now."},
    ),
)


def _status(field: str) -> Any:
    return lambda row: doc.mapping(row.document, "status").get(field)


def _waits(row: TableRow) -> str:
    return "; ".join(doc.mapping(row.document, "status").get("waitsFor") or ())


_COLUMNS = (
    Column("Phase", _status("phase"), description="Distributing, Issuing, Outgoing, Retiring or Retired."),
    Column("Ends", _status("notAfter"), description="Until when its certificate is valid."),
    Column("Without Trust", _status("agentsWithoutTrust"), type="integer", description="Agents that do not trust it yet."),
    Column("Holding", _status("agentsHolding"), type="integer", description="Agents whose certificate is of it."),
    Column("Waits For", _waits, description="What the next step waits for."),
    AGE,
    Column("Fingerprint", _status("fingerprint"), description="SHA-256 of the certificate.", priority=1),
)


def certificate_authority(group_suffix: str, storage: Storage, *actions: tuple[str, Answers]) -> Resource:
    """Returns the resource. `actions`: name and handler of each subresource that operators post to."""
    group = f"hub.{group_suffix}"
    return Resource(
        group=group,
        version="v1alpha1",
        name="certificateauthorities",
        singular="certificateauthority",
        kind="CertificateAuthority",
        short_names=("ca",),
        verbs=("get", "list"),
        schema=SCHEMA,
        columns=_COLUMNS,
        storage=storage,
        subresources=tuple(Subresource(name, verbs=("create",), question=_action(group, answer)) for name, answer in actions),
    )


def _action(group: str, answer: Answers) -> Resource:
    return Resource(
        group=group,
        version="v1alpha1",
        name="certificateauthorityactions",
        kind="CertificateAuthorityAction",
        verbs=("create",),
        schema=ACTION_SCHEMA,
        answers=answer,
    )
