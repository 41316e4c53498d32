"""Use cases about Namespaces: the kind's only write path, and checks for other use cases."""

from typing import Any

from hub.api import namespaces as namespace_rules
from hub.api.managed_fields import HUB_WRITER
from hub.api.meta import document as doc
from hub.api.meta.change import NAMESPACES, SERVICE_ACCOUNTS
from hub.ports import Transaction, Written
from hub.registry.generic.objects import write
from machinery.errors import Cause, ErrorSubject, ForbiddenError, NotFoundError
from machinery.identity import CLUSTER_LABEL
from machinery.meta.objects import Key, Query, StoredObject

STARTING = "hub:start"


def put(tx: Transaction, new: dict[str, Any], old: StoredObject | None, actor: str, *, writer: str = "") -> Written:
    """Create (`old` None) or update. A namespace that is being deleted and has no finalizers is removed.

    `writer`: see `hub.registry.generic.objects.write`. Raises ForbiddenError, ConflictError and others.
    """
    if old is not None and doc.is_deleting(new):
        _check_deletable(old.key.name)
        if not namespace_rules.is_held(new):
            return tx.objects.delete(NAMESPACES, old, actor)
    return write(tx, NAMESPACES, new, old, actor, writer=writer)


def remove(tx: Transaction, old: StoredObject, actor: str) -> Written:
    """Delete the namespace; while content or finalizers remain, mark it Terminating. Raises ForbiddenError (PERMANENT)."""
    document = old.document
    _check_deletable(old.key.name)
    if namespace_rules.is_held(document) and not doc.is_deleting(document):
        return put(tx, namespace_rules.terminating(doc.deleting(document, tx.now)), old, actor)
    return tx.objects.delete(NAMESPACES, old, actor)


def get(tx: Transaction, name: str) -> StoredObject | None:
    return tx.objects.get(NAMESPACES, Key("", name))


def ensure_predefined(tx: Transaction) -> None:
    """Create missing predefined namespaces."""
    for name in namespace_rules.STANDING:
        if get(tx, name) is None:
            put(tx, namespace_rules.namespace(name), None, STARTING, writer=HUB_WRITER)


def check_free(tx: Transaction, cluster: str) -> None:
    """Raise ForbiddenError if the namespace of this name belongs to no cluster and has ServiceAccounts.

    A cluster may not have such a name, because its agent and add-ons would get rights in the namespace.
    """
    found = get(tx, cluster)
    if found is None or namespace_rules.is_of_cluster(found.document):
        return
    if tx.objects.find(SERVICE_ACCOUNTS, Query(namespace=cluster, limit=1)).items:
        text = (
            f'the namespace "{cluster}" has ServiceAccounts and belongs to no cluster: give the cluster another name, or, if '
            f"the namespace is for it, label the namespace with {CLUSTER_LABEL}={cluster}"
        )
        raise ForbiddenError(text, subject=ErrorSubject(name=cluster, kind="namespaces"))


def ensure_of_cluster(tx: Transaction, cluster: str, actor: str) -> None:
    """Create or label an accepted cluster's namespace. Raises ForbiddenError while an earlier namespace is terminating."""
    found = get(tx, cluster)
    if found is None:
        put(tx, namespace_rules.of_cluster(cluster), None, actor, writer=HUB_WRITER)
    elif doc.is_deleting(found.document):
        text = f'cluster namespace "{cluster}" is terminating: accept the cluster when the namespace is deleted'
        raise ForbiddenError(text, subject=ErrorSubject(name=cluster, kind="namespaces"))
    elif not namespace_rules.is_of_cluster(found.document):
        check_free(tx, cluster)
        put(tx, namespace_rules.labelled(found.document), found, actor, writer=HUB_WRITER)


def check_open(tx: Transaction, resource: str, key: Key, *, group: str = "") -> None:
    """Check that the namespace of `key` accepts new objects. Raises NotFoundError, ForbiddenError with Kubernetes' messages."""
    found = get(tx, key.namespace)
    if found is None:
        raise not_found_error(key.namespace)
    if doc.is_deleting(found.document):
        qualified = f"{resource}.{group}" if group else resource
        why = f"unable to create new content in namespace {key.namespace} because it is being terminated"
        cause = Cause("NamespaceTerminating", f"namespace {key.namespace} is being terminated", "metadata.namespace")
        subject = ErrorSubject(name=key.name, group=group, kind=resource)
        raise ForbiddenError(f'{qualified} "{key.name}" is forbidden: {why}', subject=subject, causes=(cause,))


def not_found_error(name: str) -> NotFoundError:
    """Return the error for a missing namespace, with Kubernetes' message."""
    return NotFoundError(f'namespaces "{name}" not found', subject=ErrorSubject(name=name, kind="namespaces"))


def _check_deletable(name: str) -> None:
    if name in namespace_rules.PERMANENT:
        subject = ErrorSubject(name=name, kind="namespaces")
        raise ForbiddenError(f'namespaces "{name}" is forbidden: this namespace may not be deleted', subject=subject)
