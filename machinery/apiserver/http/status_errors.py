"""Errors and causes with kube-apiserver's messages, and their conversion to Status documents."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from math import ceil
from typing import Any

from machinery.apiserver.access import Attributes
from machinery.apiserver.resource import Resource
from machinery.apiserver.storage import Actor
from machinery.errors import (
    CODES,
    AlreadyExistsError,
    BadRequestError,
    Cause,
    ConflictError,
    DeadlineError,
    DenialCause,
    ErrorSubject,
    ExpiredError,
    ForbiddenError,
    InvalidError,
    MusterError,
    NotFoundError,
)

MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


class InternalError(MusterError):
    """The error that a client gets for an unknown exception."""

    reason = "InternalError"

    def __init__(self) -> None:
        super().__init__("an internal error occurred; the server's log says more")


class PageExpiredError(ExpiredError):
    """The revision of a list's first page was compacted. `token` continues the list at the current state."""

    def __init__(self, token: str) -> None:
        super().__init__(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
            "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
            "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
            "deleted between the time the first chunk was returned and now may show up in the list."
        )
        self.token = token


def forbidden_request(actor: Actor, asked: Attributes, reason: str, cause: DenialCause | None = None) -> ForbiddenError:
    why = f": {reason}" if reason else ""
    causes = cause.because(reason) if cause is not None else ()
    if not asked.resource:
        text = f'forbidden: User "{actor.user}" cannot {asked.verb} path "{asked.path}"{why}'
        return ForbiddenError(text, subject=ErrorSubject(), causes=causes)
    qualified = f"{asked.resource}.{asked.group}" if asked.group else asked.resource
    named = f' "{asked.name}"' if asked.name else ""
    resource = f"{asked.resource}/{asked.subresource}" if asked.subresource else asked.resource
    scope = f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
    return ForbiddenError(
        f'{qualified}{named} is forbidden: User "{actor.user}" cannot {asked.verb} resource "{resource}" '
        f'in API group "{asked.group}" {scope}{why}',
        subject=ErrorSubject(name=asked.name, group=asked.group, kind=asked.resource),
        causes=causes,
    )


def causes_text(causes: Sequence[Cause]) -> str:
    lines = [f"{cause.field}: {cause.message}" for cause in causes]
    return lines[0] if len(lines) == 1 else f"[{', '.join(lines)}]"


def _subject(resource: Resource, name: str) -> ErrorSubject:
    return ErrorSubject(name=name, group=resource.group, kind=resource.name)


def conflict_error(resource: Resource, name: str, why: str = MODIFIED) -> ConflictError:
    return ConflictError(f'Operation cannot be fulfilled on {resource.key} "{name}": {why}', subject=_subject(resource, name))


def invalid_error(resource: Resource, name: str, causes: Sequence[Cause], *, kind: str = "") -> InvalidError:
    """Return the error of an object that violates rules. `kind`: the kind that the object names; "": the resource's kind."""
    shown = kind or resource.kind
    qualified = f"{shown}.{resource.group}" if resource.group else shown
    return InvalidError(
        f'{qualified} "{name}" is invalid: {causes_text(causes)}',
        subject=ErrorSubject(name=name, group=resource.group, kind=shown),
        causes=causes,
    )


def invalid_options_error(kind: str, cause: Cause) -> InvalidError:
    """Return the error of query parameters that violate a rule. `kind`: ListOptions, CreateOptions, ..."""
    return InvalidError(
        f'{kind}.meta.k8s.io "" is invalid: {cause.field}: {cause.message}',
        subject=ErrorSubject(group="meta.k8s.io", kind=kind),
        causes=(cause,),
    )


def undecodable_error(resource: Resource, why: str) -> BadRequestError:
    shown = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
    return BadRequestError(f"{shown}: {why}")


def too_new_error(revision: int, current: int) -> DeadlineError:
    return DeadlineError(
        f"Timeout: Too large resource version: {revision}, current: {current}",
        causes=(Cause("ResourceVersionTooLarge", "Too large resource version", ""),),
        retry_after=timedelta(seconds=1),
    )


@contextmanager
def errors_about(resource: Resource, name: str) -> Iterator[None]:
    """Context manager that adds kube-apiserver's details and message to errors of a storage about the object `name`."""
    try:
        yield
    except MusterError as error:
        if error.subject is not None:
            raise
        if isinstance(error, NotFoundError | AlreadyExistsError):
            made, what = (
                (NotFoundError, "not found") if isinstance(error, NotFoundError) else (AlreadyExistsError, "already exists")
            )
            raise made(f'{resource.key} "{name}" {what}', subject=_subject(resource, name)) from error
        if isinstance(error, ConflictError):
            raise conflict_error(resource, name, error.message or MODIFIED) from error
        if not isinstance(error, InvalidError):
            raise
        if error.causes:
            raise invalid_error(resource, name, error.causes) from error
        text = f'{resource.qualified_kind} "{name}" is invalid: {error.message}'
        raise InvalidError(text, subject=ErrorSubject(name=name, group=resource.group, kind=resource.kind)) from error


def _details(error: MusterError) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if subject := error.subject:
        named = (("name", subject.name), ("group", subject.group), ("kind", subject.kind), ("uid", subject.uid))
        details.update((name, value) for name, value in named if value)
    if error.causes:
        details["causes"] = [
            {"reason": cause.reason, "message": cause.message, **({"field": cause.field} if cause.field else {})}
            for cause in error.causes
        ]
    if error.retry_after is not None:
        details["retryAfterSeconds"] = max(1, ceil(error.retry_after.total_seconds()))
    return details


def status_document(error: MusterError) -> dict[str, Any]:
    """Return the error as a metav1.Status. An unknown reason becomes an internal error."""
    details = _details(error)
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {"continue": error.token} if isinstance(error, PageExpiredError) else {},
        "status": "Failure",
        "message": error.message,
        "reason": error.reason,
        **({"details": details} if details else {}),
        "code": CODES.get(error.reason, 500),
    }


def success_document(resource: Resource, name: str, uid: str) -> dict[str, Any]:
    """Return the Status for a completed delete."""
    details = {"name": name, **({"group": resource.group} if resource.group else {}), "kind": resource.name, "uid": uid}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
