"""TokenCredentialRequest, modelled on Pinniped's: exchanges a token of another issuer for a client certificate of this door."""

from hub.https_door.kinds.schemas import MOMENT, TEXT, Schema, record
from machinery.apiserver.resource import Answers, Resource
from machinery.apiserver.storage import Storage
from machinery.product import NAME

SCHEMA: Schema = record(
    "TokenCredentialRequest exchanges a token for a client certificate that is good for minutes. Nothing of it is kept. What "
    "is wrong with a token is never told: the answer then has a message and no credential.",
    ("spec",),
    spec=record(
        "What is exchanged.",
        token={**TEXT, "description": "The token."},
        authenticator=record(
            "Who knows the token: a JWTAuthenticator or a WebhookAuthenticator of this group by its name, or, without group "
            "and name, ServiceAccount for those of this hub.",
            apiGroup=TEXT,
            kind=TEXT,
            name=TEXT,
        ),
        request={
            **TEXT,
            "description": "A certificate signing request in PEM over the asker's key; its subject does not count. Without it "
            "the key is made here and comes with the certificate.",
        },
    ),
    status=record(
        "What it was exchanged for.",
        message={**TEXT, "description": "Why there is no credential."},
        credential=record(
            "As client-go's ExecCredential has it.",
            expirationTimestamp=MOMENT,
            clientCertificateData={**TEXT, "description": "PEM, leaf first."},
            clientKeyData={**TEXT, "description": "PEM; absent where `request` came with the question."},
        ),
    ),
)


def token_credential_request(group: str, answers: Answers, storage: Storage) -> Resource:
    return Resource(
        group=group,
        version="v1alpha1",
        name="tokencredentialrequests",
        kind="TokenCredentialRequest",
        categories=(NAME,),
        verbs=("create", "list"),
        schema=SCHEMA,
        storage=storage,
        answers=answers,
    )
