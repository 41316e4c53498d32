"""create, update, patch, delete and deletecollection: decode the request and apply the rules of `writes` to the object.

A create of a kind that is never stored (reviews, tokens) is answered with a computed document.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from machinery.apiserver.access import ANONYMOUS, Attributes
from machinery.apiserver.http.filters import INCOMING
from machinery.apiserver.http.options import (
    WriteOptions,
    agent_manager,
    check_patch_options,
    delete_options,
    list_options,
    write_options,
)
from machinery.apiserver.http.responses import add_warnings, encode_list, item_bytes, json_answer, value_answer
from machinery.apiserver.http.status_errors import errors_about, invalid, success_document
from machinery.apiserver.read.reads import ResourceCall, list_page, object_answer
from machinery.apiserver.resource import Question, Resource, Subresource
from machinery.apiserver.storage import Actor, UpdateFunc
from machinery.apiserver.write import bodies, patches
from machinery.apiserver.write.changes import Changing
from machinery.apiserver.write.metadata import generated
from machinery.apiserver.write.patches import apply_strategic_patch
from machinery.apiserver.write.schema import defaulted, violations
from machinery.apiserver.write.writes import (
    Write,
    check_configuration,
    check_envelope,
    check_preconditions,
    check_types,
    other_name,
)
from machinery.errors import (
    AlreadyExistsError,
    BadRequestError,
    ErrorSubject,
    MethodNotAllowedError,
    NotFoundError,
    UnsupportedMediaTypeError,
)
from machinery.meta.managedfields.ownership import Holdings
from machinery.meta.objects import Document, Key, StoredObject

TRIES = 8
"""Attempts to find a free generated name, and attempts of an apply that races with creates and deletes."""
Allowed = Callable[[Actor, Attributes], Awaitable[None]]


class Mutations:
    """Writes of one server.

    `namespaces`: whether objects may be created in a namespace. `allowed` raises ForbiddenError when the caller may not.
    """

    def __init__(
        self, *, body_limit: int, namespaces: Callable[[str], Awaitable[bool]], allowed: Allowed, changing: Changing
    ) -> None:
        self._limit = body_limit
        self._changing = changing
        self._namespaces = namespaces
        self._allowed = allowed

    async def create(self, call: ResourceCall, actor: Actor) -> web.Response:
        options = _options(call, "CreateOptions")
        write = _write(call, actor, options)
        document = check_envelope(write, await self._body(call, actor), call.namespace)
        metadata = document["metadata"]
        if metadata.get("resourceVersion"):
            raise BadRequestError("resourceVersion should not be set on objects to be created")
        if call.attributes.name and metadata.get("name", "") != call.attributes.name:
            raise other_name(metadata.get("name", ""), call.attributes.name)
        await self._check_namespace(call)
        stored = await self._create(call, write, document, options)
        return await write_answer(call, write, stored, 201)

    async def update(self, call: ResourceCall, actor: Actor, part: Subresource | None) -> web.Response:
        options = _options(call, "UpdateOptions")
        write = _write(call, actor, options, part)
        document = check_envelope(write, await self._body(call, actor), call.namespace)
        name = document["metadata"].get("name") or call.attributes.name
        if name != call.attributes.name:
            raise other_name(name, call.attributes.name)
        stored = await self._change(call, actor, options, lambda old: write.changed(document, old))
        return await write_answer(call, write, stored)

    async def patch(self, call: ResourceCall, actor: Actor, part: Subresource | None) -> web.Response:
        applies = _patch_type(call) == patches.APPLY_PATCH
        options = _options(call, "PatchOptions")
        check_patch_options(options, applies=applies)
        write = _write(call, actor, options, part)
        if applies:
            return await self._apply(call, write, options)
        patched = await self._patched(call, actor)

        def change(old: Document) -> Document | None:
            shown = write.shown(old)
            document = check_envelope(write, patched(shown), call.namespace)
            if document["metadata"].get("name") != call.attributes.name:
                raise other_name(document["metadata"].get("name", ""), call.attributes.name)
            return write.changed(document, old)

        stored = await self._change(call, actor, options, change)
        return await write_answer(call, write, stored)

    async def _apply(self, call: ResourceCall, write: Write, options: WriteOptions) -> web.Response:
        """Server-side apply. It creates a missing object if the caller has the verb create."""
        config, force = await self._configuration(call, write), bool(options.force)
        for attempt in range(TRIES):
            try:
                stored = await self._change(call, write.actor, options, lambda old: write.applied(config, old, force=force))
                return await write_answer(call, write, stored)
            except NotFoundError:
                if write.part is not None or "create" not in call.resource.verbs:
                    raise
            await self._allowed(write.actor, replace(call.attributes, verb="create"))
            await self._check_namespace(call)
            made = partial(write.ownership.applied, config, None, force=False)
            document, holdings = await self._changing.made(made, write.actor, size=await _size(call))
            try:
                return await write_answer(call, write, await self._create(call, write, document, options, holdings), 201)
            except AlreadyExistsError:  # another request created the object first
                if attempt == TRIES - 1:
                    raise
        raise AssertionError

    async def _configuration(self, call: ResourceCall, write: Write) -> dict[str, Any]:
        body = await self._read(call, write.actor)
        config, twice = await bodies.decode_configuration(body)
        if twice and write.validation == "Strict":
            raise BadRequestError(f"error strict decoding patch: {', '.join(twice)}")
        write.noted = twice if write.validation == "Warn" else []
        return check_configuration(write, config, call.key)

    async def _check_namespace(self, call: ResourceCall) -> None:
        if call.namespace and not await self._namespaces(call.namespace):
            subject = ErrorSubject(name=call.namespace, kind="namespaces")
            raise NotFoundError(f'namespaces "{call.namespace}" not found', subject=subject)

    async def delete(self, call: ResourceCall, actor: Actor) -> web.Response:
        asked, options = await self._delete_options(call, actor)
        write = _write(call, actor, options)
        with errors_about(call.resource, call.key.name):
            change = _deletion(write, asked)
            stored = await call.storage.update(call.resource.key, call.key, change, actor, dry_run=options.dry_run)
        await _wait_written(call, stored, options)
        metadata = stored.document["metadata"]
        if not write.removed or ("deletionTimestamp" in metadata and metadata.get("finalizers")):  # the storage keeps it
            return await write_answer(call, write, stored)
        uid = metadata.get("uid", "")
        return await value_answer(call.request, success_document(call.resource, call.key.name, uid), call.form)

    async def delete_collection(self, call: ResourceCall, actor: Actor) -> web.Response:
        """Delete the selected objects one at a time and return those that were deleted.

        The first object that fails a precondition ends the request; earlier ones stay deleted.
        """
        asked, options = await self._delete_options(call, actor)
        page = await list_page(call, list_options(call.resource, call.namespace, call.request.query, call.clock.now()))
        gone = []
        for item in page.items:
            change = _deletion(_write(call, actor, options), asked)
            try:
                gone.append(await call.storage.update(call.resource.key, item.key, change, actor, dry_run=options.dry_run))
                await _wait_written(call, gone[-1], options)
            except NotFoundError:
                continue
        metadata = {"resourceVersion": str(page.revision)}
        envelope = {"kind": call.resource.list_kind, "apiVersion": call.api_version, "metadata": metadata}
        items = [item_bytes(item, call.convert) for item in gone]
        return await json_answer(call.request, encode_list(envelope, items), call.form)

    async def answer_question(self, call: ResourceCall, actor: Actor, kind: Resource) -> web.Response:
        """Respond to a create whose result is computed. Raises BadRequestError, InvalidError, and what `answers` raises."""
        if kind.answers is None:
            raise MethodNotAllowedError(f"{kind.name} cannot be asked")
        call = replace(call, resource=kind)
        options = _options(call, "CreateOptions")
        write = Write(kind, actor, call.clock.now(), options.validation)
        body = check_envelope(write, await self._body(call, actor), call.namespace)
        document = defaulted(kind.schema, write.known(body))
        causes = violations(kind.schema, document)
        check_types(kind, causes)
        causes.extend(kind.validate(document, None) if kind.validate is not None else ())
        if causes:
            raise invalid(kind, str(document["metadata"].get("name", "")), causes)
        question = Question(
            document,
            actor,
            write.now,
            call.namespace,
            call.attributes.name,
            options.dry_run,
            peer=call.request.remote or "",
            annotations=call.request[INCOMING].annotations,
        )
        answered = {**await kind.answers(question), "apiVersion": kind.api_version(), "kind": kind.kind}
        stored = StoredObject(Key(call.namespace, str(document["metadata"].get("name", ""))), 0, msgspec.json.encode(answered))
        return await write_answer(call, write, stored, 201)

    async def _create(
        self,
        call: ResourceCall,
        write: Write,
        document: Mapping[str, Any],
        options: WriteOptions,
        holdings: Holdings | None = None,
    ) -> StoredObject:
        metadata, size = document["metadata"], await _size(call)
        drawn = not metadata.get("name") and isinstance(metadata.get("generateName"), str) and metadata["generateName"]
        for attempt in range(TRIES):
            named = {**metadata, "name": generated(drawn)} if drawn else metadata
            make = partial(write.created, {**document, "metadata": named}, holdings)
            new = await self._changing.made(make, write.actor, size=size)
            key = Key(call.namespace, str(new["metadata"]["name"]))
            try:
                with errors_about(call.resource, key.name):
                    stored = await call.storage.create(call.resource.key, key, new, write.actor, dry_run=options.dry_run)
            except AlreadyExistsError:
                if not drawn or attempt == TRIES - 1:
                    raise
            else:
                await _wait_written(call, stored, options)
                return stored
        raise AssertionError

    async def _change(self, call: ResourceCall, actor: Actor, options: WriteOptions, change: UpdateFunc) -> StoredObject:
        size, resource = await _size(call), call.resource
        with errors_about(resource, call.key.name):
            stored = await self._changing.change(
                call.storage, resource.key, call.key, change, actor, size=size, dry_run=options.dry_run
            )
        await _wait_written(call, stored, options)
        return stored

    async def _body(self, call: ResourceCall, actor: Actor) -> dict[str, Any]:
        """Body as a document of the call's kind. Raises BadRequestError, TooLargeError, UnsupportedMediaTypeError."""
        return await bodies.decode(await self._read(call, actor), bodies.media_type(call.request), call.resource.kind)

    async def _read(self, call: ResourceCall, actor: Actor) -> bytes:
        return await bodies.read(call.request, self._limit, anonymous=actor.user == ANONYMOUS.user)

    async def _delete_options(self, call: ResourceCall, actor: Actor) -> tuple[Mapping[str, Any], WriteOptions]:
        """DeleteOptions in the body, with the options of the query and of the body together."""
        body = await self._read(call, actor)
        asked: Mapping[str, Any] = {}
        if body.strip():
            asked = delete_options(await bodies.decode(body, bodies.media_type(call.request), "DeleteOptions"))
        dry_runs = (*call.request.query.getall("dryRun", []), *(asked.get("dryRun") or ()))
        return asked, write_options("DeleteOptions", {}, list(dict.fromkeys(dry_runs)))

    async def _patched(self, call: ResourceCall, actor: Actor) -> Callable[[Document], dict[str, Any]]:
        media = _patch_type(call)
        try:
            patch = bodies.decode_json(await self._read(call, actor), call.resource.kind)
        except BadRequestError as error:
            raise BadRequestError(f"error decoding patch: {error.message.partition('; ')[2]}") from None
        if media == patches.JSON_PATCH:
            return lambda old: patches.apply_json_patch(old, patch)
        if media == patches.MERGE_PATCH:
            return lambda old: patches.apply_merge_patch(old, patch)
        return lambda old: apply_strategic_patch(old, patch, call.resource.merge_keys)


def _patch_type(call: ResourceCall) -> str:
    """Media type of the patch. Raises UnsupportedMediaTypeError when the kind does not support it."""
    strategic = () if call.resource.custom else (patches.STRATEGIC_PATCH,)
    accepted = (patches.JSON_PATCH, patches.MERGE_PATCH, *strategic, patches.APPLY_PATCH)
    media = bodies.media_type(call.request)
    if media not in accepted:
        raise UnsupportedMediaTypeError(
            "the body of the request was in an unknown format - accepted media types include: " + ", ".join(accepted)
        )
    return media


def _options(call: ResourceCall, kind: str) -> WriteOptions:
    return write_options(kind, call.request.query, call.request.query.getall("dryRun", []))


def _write(call: ResourceCall, actor: Actor, options: WriteOptions, part: Subresource | None = None) -> Write:
    manager = options.manager or agent_manager(call.request.headers.get("User-Agent", ""))
    return Write(call.resource, actor, call.clock.now(), options.validation, call.version, part, manager)


def _deletion(write: Write, asked: Mapping[str, Any]) -> Callable[[Document], Document | None]:
    """Change that deletes an object if it meets the preconditions."""
    preconditions = asked.get("preconditions") or {}

    def change(old: Document) -> Document | None:
        check_preconditions(write, preconditions, old)
        return write.deleted(old)

    return change


async def _wait_written(call: ResourceCall, stored: StoredObject, options: WriteOptions) -> None:
    if call.resource.written is not None and not options.dry_run:
        await call.resource.written(call.resource.key, stored.revision)


async def _size(call: ResourceCall) -> int:
    """Size of the body in bytes. aiohttp has cached the body by then."""
    return len(await call.request.read())


async def write_answer(call: ResourceCall, write: Write, stored: StoredObject, status: int = 200) -> web.Response:
    """Response of a write: the object in the requested form, with the warnings."""
    if write.last is not None:
        metadata = {**write.last["metadata"], "resourceVersion": str(stored.revision)}
        stored = StoredObject(stored.key, stored.revision, msgspec.json.encode({**write.last, "metadata": metadata}))
    response = await object_answer(call, stored, status)
    add_warnings(response, (*write.noted, *write.warnings))
    return response
