"""Writes objects: sets metadata and field owners, limits the size that agents may write, and skips a write without a change.

The size limit for operators is `OBJECT_LIMIT` of `machinery.apiserver.http.limits`. If an agent filled an object up to this
limit, operators could not change the object, for example deny the cluster. So the limit for agents is lower. The lower limit
applies to all callers of a cluster and to bootstrap credentials, at both doors.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import msgspec

from hub.api.managed_fields import HUB_WRITER, tracked
from hub.api.meta import document as doc
from hub.api.meta.change import Kind
from hub.ports import Transaction, Written
from hub.registry.generic import structure_of
from machinery.errors import ErrorSubject, NotFoundError, TooLargeError
from machinery.identity import BOOTSTRAP_USER_PREFIX, RECOVERY_USER_PREFIX, SUBJECT_PREFIX
from machinery.meta.managedfields.ownership import is_same
from machinery.meta.objects import Document, Key, Query, StoredObject
from machinery.product import GROUP_SUFFIX, OWN_GROUPS


@dataclass(frozen=True, slots=True)
class Unchanged(Written):
    """Result of a write that changed nothing, so nothing was written. `old`: the stored object."""

    old: StoredObject

    @property
    def stored(self) -> StoredObject:
        return self.old


PAGE = 200
OF_CLUSTERS = (SUBJECT_PREFIX, BOOTSTRAP_USER_PREFIX, RECOVERY_USER_PREFIX)
AGENT_LIMIT = 1280 * 1024
"""Largest JSON in bytes that an agent may write. Operators may write 256 KiB more (`OBJECT_LIMIT`)."""
GROWTH_ABOVE_LIMIT = 1024
"""Bytes that an agent's write may add to an object above AGENT_LIMIT, so that a condition can still change."""
HARD_LIMIT = 1664 * 1024
"""Agents can enlarge an object in steps of GROWTH_ABOVE_LIMIT up to this size; operators up to OBJECT_CEILING, 128 KiB more."""

_encode = msgspec.json.Encoder().encode


def check_agent_size(document: Document, old: StoredObject | None, actor: str) -> None:
    """Raise TooLargeError if a caller of a cluster writes too large an object. One above AGENT_LIMIT may grow a little."""
    if not actor.startswith(OF_CLUSTERS):
        return
    size, before = len(_encode(document)), len(old.encoded) if old is not None else 0
    grown = before + GROWTH_ABOVE_LIMIT if before > AGENT_LIMIT else AGENT_LIMIT
    if size > max(before, min(grown, HARD_LIMIT)):
        above = f", or {GROWTH_ABOVE_LIMIT} bytes more than before" if before > AGENT_LIMIT else ""
        raise TooLargeError(f"the object is too large: {size} bytes; the limit for agents is {AGENT_LIMIT}{above}")


def write(
    tx: Transaction,
    kind: Kind,
    document: dict[str, Any],
    old: StoredObject | None,
    actor: str,
    *,
    generations: bool = False,
    writer: str = "",
    uid: str = "",
) -> Written:
    """Store an admitted document with uid, creation time and generation. Raises the errors of `Objects.put`, and TooLargeError.

    `writer`: the field manager of the hub's own write; "" if the API server has set managedFields. `uid`: for a new object; "":
    a random uid. If only times in managedFields differ, nothing is written.
    """
    before = old.document if old else None
    document = doc.stamped(document, before, uid=uid or str(uuid4()), now=tx.now, generations=generations)
    if writer:
        document = tracked(structure_of(kind), document, before, writer, tx.now)
    if old is not None and before is not None and is_same(document, before):
        now = tx.objects.get(kind, old.key)  # a write with an outdated revision is refused even if it changes nothing
        if now is not None and (now.uid, now.revision) == (old.uid, old.revision):
            return Unchanged(old)
    if writer != HUB_WRITER:
        check_agent_size(document, old, actor)
    return tx.objects.put(kind, document, old, actor)


def put(
    tx: Transaction,
    kind: Kind,
    new: dict[str, Any],
    old: StoredObject | None,
    actor: str,
    *,
    generations: bool = False,
    writer: str = "",
) -> Written:
    """Create (`old` None) or update. An object that is being deleted and has no finalizers is removed. `writer`: see `write`.

    Raises AlreadyExistsError, ConflictError.
    """
    if old is not None and doc.is_deleting(new) and not doc.finalizers(new):
        return tx.objects.delete(kind, old, actor)
    return write(tx, kind, new, old, actor, generations=generations, writer=writer)


def remove(tx: Transaction, kind: Kind, old: StoredObject, actor: str, *, generations: bool = False) -> Written:
    """Delete the object. While finalizers remain, only set its deletionTimestamp."""
    document = old.document
    if doc.finalizers(document) and not doc.is_deleting(document):
        return put(tx, kind, doc.deleting(document, tx.now), old, actor, generations=generations)
    return tx.objects.delete(kind, old, actor)


def find(tx: Transaction, kind: Kind, key: Key) -> StoredObject:
    """Return the object. Raises NotFoundError."""
    stored = tx.objects.get(kind, key)
    if stored is None:
        raise not_found_error(kind, key.name)
    return stored


def each(tx: Transaction, kind: Kind, query: Query) -> Iterator[StoredObject]:
    """Yields all objects that a query without a limit selects, read in pages."""
    page = tx.objects.find(kind, replace(query, limit=PAGE))
    yield from page.items
    while page.after is not None:
        page = tx.objects.find(kind, replace(query, limit=PAGE, after=page.after))
        yield from page.items


def not_found_error(kind: Kind, name: str) -> NotFoundError:
    resource, _, group = kind.partition(".")
    group = group_of(group, GROUP_SUFFIX)
    qualified = f"{resource}.{group}" if group else resource
    return NotFoundError(f'{qualified} "{name}" not found', subject=ErrorSubject(name=name, group=group, kind=resource))


def group_of(group: str, suffix: str) -> str:
    """Return the served name of an API group: the hub's own groups get `suffix`, other groups stay unchanged."""
    return f"{group}.{suffix}" if group in OWN_GROUPS else group
