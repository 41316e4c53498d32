"""CredentialIssuer, modelled on Pinniped's: how operators get credentials for the cluster that the hub runs in."""

from hub.api.meta import document as doc
from hub.https_door.kinds.schemas import MOMENT, TEXT, Schema, listing, record
from machinery.apiserver.resource import AGE, STATUS, Column, Resource, TableRow

_REACHED = record(
    "The cluster that such a credential opens, as it tells of itself in kube-public/cluster-info.",
    server=TEXT,
    certificateAuthorityData={**TEXT, "description": "PEM of what verifies it, in base64."},
)
_FRONTEND = record("How a client gets a credential.", ("type",), type=TEXT, tokenCredentialRequestInfo=_REACHED)
_STRATEGY = record(
    "",
    ("type", "status", "reason"),
    type={**TEXT, "description": "KubeClusterSigningCertificate: by the CA that the controller-manager signs with."},
    status={**TEXT, "enum": ["Success", "Error"]},
    reason={**TEXT, "description": "FetchedKey, CouldNotFetchKey, CouldNotGetClusterInfo."},
    message=TEXT,
    lastUpdateTime=MOMENT,
    signer={
        **TEXT,
        "description": "The CA, as records of certificates name it.",
    },
    frontend=_FRONTEND,
)
SCHEMA: Schema = record(
    "CredentialIssuer tells how logins are signed by the CA of the Kubernetes cluster that the hub runs in.",
    status=record("", strategies=listing(_STRATEGY, "type", description="Those that clients should prefer come first.")),
)


def _newest(field: str, row: TableRow) -> str:
    return next((str(each.get(field) or "") for each in doc.sequence(row.document, "status", "strategies")), "")


COLUMNS = (
    Column("Strategy", lambda row: _newest("type", row), description="The strategy that clients should prefer."),
    Column("Status", lambda row: _newest("status", row), description="Success or Error."),
    Column("Reason", lambda row: _newest("reason", row), description="Why."),
    Column("Signer", lambda row: _newest("signer", row), description="The CA.", priority=1),
    Column("Message", lambda row: _newest("message", row), description="For people.", priority=1),
    AGE,
)


def credential_issuer(group_suffix: str) -> Resource:
    return Resource(
        group=f"hub.{group_suffix}",
        version="v1alpha1",
        name="credentialissuers",
        kind="CredentialIssuer",
        schema=SCHEMA,
        subresources=(STATUS,),
        columns=COLUMNS,
    )
