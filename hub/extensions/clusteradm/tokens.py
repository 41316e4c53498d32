"""Bootstrap tokens for clusteradm: a TokenRequest of OCM's bootstrap ServiceAccount creates a bootstrap credential.

`clusteradm get token` requests the token, `clusteradm delete token` deletes the ServiceAccount, which revokes all its tokens.
"""

from collections.abc import MutableMapping
from dataclasses import replace
from datetime import timedelta

from hub.api import namespaces as namespace_rules
from hub.api.bootstrapcredentials import CredentialBounds, CredentialRecord
from hub.api.managed_fields import HUB_WRITER
from hub.api.meta import document as doc
from hub.api.meta.change import SERVICE_ACCOUNTS
from hub.https_door.storage.storage import DelegatingStorage
from hub.ports import Store, Transaction
from hub.registry import core as accounts, namespaces
from hub.registry.bootstrapcredentials import service as credentials
from hub.registry.bootstrapcredentials.service import CredentialTerms
from hub.registry.core import BOOTSTRAP_ACCOUNT
from hub.registry.generic.virtual import not_found
from machinery.apiserver.access import Attributes
from machinery.apiserver.http.status_errors import forbidden_request
from machinery.apiserver.kinds.reviews import Reviewer
from machinery.apiserver.resource import Question, Resource, Subresource
from machinery.apiserver.storage import Actor, GroupResource, Storage
from machinery.errors import BadRequestError, InvalidError, NotFoundError
from machinery.meta.objects import Document, Key, Page, Query, StoredObject
from machinery.meta.selectors import parse_label_selector
from machinery.meta.timestamps import format_time
from machinery.product import NAME

SERVICE_ACCOUNT_RESOURCE, SECRET_RESOURCE = GroupResource("", "serviceaccounts"), GroupResource("", "secrets")
CREDENTIAL = f"{NAME}/bootstrap-credential"
"""Annotation of an audit record with the id of the created credential."""
SYSTEM, TOKEN_SECRET = "kube-system", "bootstrap.kubernetes.io/token"
STORED_TOKENS = parse_label_selector("app=cluster-manager").requirements
"""Label by which `clusteradm get token --use-bootstrap-token` finds its Secret."""
ADVICE = (
    "the hub shows a bootstrap token only once, when it creates it: run `clusteradm get token` without --use-bootstrap-token"
)


def ensure_account(tx: Transaction) -> None:
    """Create OCM's bootstrap ServiceAccount and namespace if the namespace is missing. Operators may delete the account."""
    if namespaces.get(tx, BOOTSTRAP_ACCOUNT.namespace) is not None:
        return
    namespace = namespace_rules.namespace(BOOTSTRAP_ACCOUNT.namespace)
    namespaces.put(tx, namespace, None, namespaces.STARTING, writer=HUB_WRITER)
    metadata = {"name": BOOTSTRAP_ACCOUNT.name, "namespace": BOOTSTRAP_ACCOUNT.namespace}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
    accounts.put_account(tx, account, None, namespaces.STARTING)


class TokenRequests:
    """Answers TokenRequests of the bootstrap ServiceAccount.

    `lifetime`: longest validity of a token. `uses`: number of agents for each token; None: no limit. `group`: the API group of
    bootstrap credentials.
    """

    def __init__(self, store: Store, lifetime: timedelta, uses: int | None, group: str) -> None:
        self._store = store
        self._lifetime = lifetime
        self._uses = uses
        self._required = Attributes("create", "", group, "v1alpha1", "bootstrapcredentials")

    def change(self, resource: Resource, _objects: Storage, authorizer: Reviewer) -> Resource:
        """Return the resource of ServiceAccounts with this class's answers to TokenRequests."""

        def changed(part: Subresource) -> Subresource:
            kind = part.question
            if part.name != "token" or kind is None or kind.answers is None:
                return part
            own = kind.answers

            async def answers(question: Question) -> Document:
                if Key(question.namespace, question.name) != BOOTSTRAP_ACCOUNT:
                    return await own(question)
                decision = await authorizer.authorize(question.actor, self._required)
                if not decision.allowed:
                    raise forbidden_request(question.actor, self._required, decision.reason)
                return await self._answered(question, await own(replace(question, dry_run=True)))

            return replace(part, question=replace(kind, answers=answers))

        return replace(resource, subresources=tuple(map(changed, resource.subresources)))

    async def _answered(self, question: Question, answer: Document) -> Document:
        """Return `answer`, which has no token yet, with a bootstrap token. Raises BadRequestError."""
        spec = doc.mapping(question.document, "spec")
        if spec.get("audiences"):
            raise BadRequestError("a bootstrap token is for this hub alone: leave spec.audiences out")
        if question.dry_run:
            return answer
        lifetime = min(timedelta(seconds=spec["expirationSeconds"]), self._lifetime)
        terms = CredentialTerms(None, self._uses, lifetime)
        record, token = await self._store.run(_create, terms, question.actor.user, question.annotations)
        return {
            **answer,
            "spec": {**answer["spec"], "expirationSeconds": round(lifetime.total_seconds())},
            "status": {"token": token, "expirationTimestamp": format_time(record.expires_at)},
        }


def _create(
    tx: Transaction, terms: CredentialTerms, actor: str, annotations: MutableMapping[str, str]
) -> tuple[CredentialRecord, str]:
    account = tx.objects.get(SERVICE_ACCOUNTS, BOOTSTRAP_ACCOUNT)
    if account is None:
        not_found(SERVICE_ACCOUNT_RESOURCE, BOOTSTRAP_ACCOUNT)
    record, token = credentials.create_token(tx, replace(terms, bounds=CredentialBounds(account=account.uid)), actor)
    annotations[CREDENTIAL] = record.id  # before the commit, which writes the audit record
    return record, token


class SecretStorage(DelegatingStorage):
    """Storage of all Secrets. A client that expects a stored token gets the answer that the hub stores none."""

    async def list(self, resource: GroupResource, query: Query) -> Page:
        page = await super().list(resource, query)
        if not page.items and query.namespace == SYSTEM and query.labels == STORED_TOKENS:
            raise NotFoundError(ADVICE)
        return page

    async def create(
        self, resource: GroupResource, key: Key, document: Document, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        if document.get("type") == TOKEN_SECRET:
            raise InvalidError(f"this hub does not accept tokens of Secrets of the type {TOKEN_SECRET}: {ADVICE}")
        return await super().create(resource, key, document, actor, dry_run=dry_run)
