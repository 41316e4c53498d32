"""create, update, patch, delete and deletecollection: decode the request and apply the rules of `writes` to the object."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
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
from machinery.apiserver.http.status_errors import errors_about, invalid_error, success_document
from machinery.apiserver.read.reads import ResourceCall, list_page, object_answer
from machinery.apiserver.resource import Question, Resource
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
    check_name,
    check_preconditions,
    check_types,
    other_name_error,
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
from machinery.runtime.clock import Clock

ATTEMPTS = 8
"""Attempts to find a free generated name, and attempts of an apply during concurrent creates and deletes."""
Allowed = Callable[[Actor, Attributes], Awaitable[None]]


class Mutations:
    """The writes of one server.

    `namespaces` returns whether objects may be created in a namespace. `allowed` raises ForbiddenError if the caller lacks a
    permission.
    """

    def __init__(
        self, clock: Clock, *, body_limit: int, namespaces: Callable[[str], Awaitable[bool]], allowed: Allowed
    ) -> None:
        self._limit = body_limit
        self._changing = Changing(clock)
        self._namespaces = namespaces
        self._allowed = allowed

    async def create(self, call: ResourceCall) -> web.Response:
        write = _write(call, _options(call, "CreateOptions"))
        document = await self._document(call, write)
        metadata = document["metadata"]
        if metadata.get("resourceVersion"):
            raise BadRequestError("resourceVersion should not be set on objects to be created")
        if call.attributes.name and metadata.get("name", "") != call.attributes.name:
            raise other_name_error(metadata.get("name", ""), call.attributes.name)
        await self._check_namespace(call)
        return await write_answer(call, write, await self._create(call, write, document), 201)

    async def update(self, call: ResourceCall) -> web.Response:
        write = _write(call, _options(call, "UpdateOptions"))
        document = await self._document(call, write)
        check_name(document["metadata"].get("name"), call.attributes.name)
        return await write_answer(call, write, await self._change(call, write, lambda old: write.changed(document, old)))

    async def patch(self, call: ResourceCall) -> web.Response:
        media, options = _patch_type(call), _options(call, "PatchOptions")
        check_patch_options(options, applies=media == patches.APPLY_PATCH)
        write = _write(call, options)
        if media == patches.APPLY_PATCH:
            return await self._apply(call, write, force=bool(options.force))
        try:
            patch = bodies.decode_json(await self._read(call), call.resource.kind)
        except BadRequestError as error:
            raise BadRequestError(f"error decoding patch: {error.message.partition('; ')[2]}") from None

        def change(old: Document) -> Document | None:
            shown = write.shown(old)
            if media == patches.JSON_PATCH:
                patched = patches.apply_json_patch(shown, patch)
            elif media == patches.MERGE_PATCH:
                patched = patches.apply_merge_patch(shown, patch)
            else:
                patched = apply_strategic_patch(shown, patch, call.resource.merge_keys)
            document = check_envelope(write, patched, call.namespace)
            check_name(document["metadata"].get("name"), call.attributes.name)
            return write.changed(document, old)

        return await write_answer(call, write, await self._change(call, write, change))

    async def _apply(self, call: ResourceCall, write: Write, *, force: bool) -> web.Response:
        """Server-side apply. Creates a missing object if the caller has the verb create."""
        config, twice = await bodies.decode_configuration(await self._read(call))
        if twice and write.validation == "Strict":
            raise BadRequestError(f"error strict decoding patch: {', '.join(twice)}")
        write.noted = twice if write.validation == "Warn" else []
        config = check_configuration(write, config, call.key)
        for attempt in range(ATTEMPTS):
            try:
                stored = await self._change(call, write, lambda old: write.applied(config, old, force=force))
                return await write_answer(call, write, stored)
            except NotFoundError:
                if write.part is not None or "create" not in call.resource.verbs:
                    raise
            await self._allowed(write.actor, replace(call.attributes, verb="create"))
            await self._check_namespace(call)
            made = partial(write.ownership.applied, config, None, force=False)
            document, holdings = await self._changing.made(made, write.actor, size=await _size(call))
            try:
                return await write_answer(call, write, await self._create(call, write, document, holdings), 201)
            except AlreadyExistsError:  # another request created the object first
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError

    async def _check_namespace(self, call: ResourceCall) -> None:
        if call.namespace and not await self._namespaces(call.namespace):
            subject = ErrorSubject(name=call.namespace, kind="namespaces")
            raise NotFoundError(f'namespaces "{call.namespace}" not found', subject=subject)

    async def delete(self, call: ResourceCall) -> web.Response:
        asked, options = await self._delete_options(call)
        write = _write(call, options)
        with errors_about(call.resource, call.key.name):
            stored = await self._delete(call, write, call.key, asked)
        write.noted = await _deletion_warnings(call, [call.key], options)
        metadata = stored.document["metadata"]
        if not write.removed or ("deletionTimestamp" in metadata and metadata.get("finalizers")):  # the object stays
            return await write_answer(call, write, stored)
        uid = metadata.get("uid", "")
        response = await value_answer(call.request, success_document(call.resource, call.key.name, uid), call.form)
        add_warnings(response, write.noted)
        return response

    async def delete_collection(self, call: ResourceCall) -> web.Response:
        """Delete the selected objects one after the other. Respond with the list of deleted objects.

        The first object that does not meet a precondition ends the request. Objects that were deleted before it stay deleted.
        """
        asked, options = await self._delete_options(call)
        page = await list_page(call, list_options(call.resource, call.namespace, call.request.query, call.clock.now()))
        gone = []
        for item in page.items:
            with suppress(NotFoundError):
                gone.append(await self._delete(call, _write(call, options), item.key, asked))
        metadata = {"resourceVersion": str(page.revision)}
        envelope = {"kind": call.resource.list_kind, "apiVersion": call.api_version, "metadata": metadata}
        items = [item_bytes(item, call.convert) for item in gone]
        response = await json_answer(call.request, encode_list(envelope, items), call.form)
        add_warnings(response, await _deletion_warnings(call, [item.key for item in gone], options))
        return response

    async def _delete(self, call: ResourceCall, write: Write, key: Key, asked: Mapping[str, Any]) -> StoredObject:
        def change(old: Document) -> Document | None:
            check_preconditions(write, asked.get("preconditions") or {}, old)
            return write.deleted(old)

        stored = await call.storage.update(call.resource.key, key, change, write.actor, dry_run=write.dry_run)
        return await _report_write(call, write, stored)

    async def answer_question(self, call: ResourceCall, kind: Resource) -> web.Response:
        """Respond to a create whose result is computed. Raises BadRequestError, InvalidError, and errors of `answers`."""
        if kind.answers is None:
            raise MethodNotAllowedError(f"{kind.name} do not support create")
        call = replace(call, resource=kind)
        options = _options(call, "CreateOptions")
        write = Write(kind, call.actor, call.clock.now(), options.validation)
        document = defaulted(kind.schema, write.known(await self._document(call, write)))
        causes = violations(kind.schema, document)
        check_types(kind, causes)
        causes.extend(kind.validate(document, None) if kind.validate is not None else ())
        name = str(document["metadata"].get("name", ""))
        if causes:
            raise invalid_error(kind, name, causes)
        question = Question(
            document,
            call.actor,
            write.now,
            call.namespace,
            call.attributes.name,
            options.dry_run,
            peer=call.request.remote or "",
            annotations=call.request[INCOMING].annotations,
        )
        answered = {**await kind.answers(question), "apiVersion": kind.api_version(), "kind": kind.kind}
        stored = StoredObject(Key(call.namespace, name), 0, msgspec.json.encode(answered))
        return await write_answer(call, write, stored, 201)

    async def _create(
        self, call: ResourceCall, write: Write, document: Mapping[str, Any], holdings: Holdings | None = None
    ) -> StoredObject:
        metadata, size = document["metadata"], await _size(call)
        drawn = not metadata.get("name") and isinstance(metadata.get("generateName"), str) and metadata["generateName"]
        for attempt in range(ATTEMPTS):
            named = {**metadata, "name": generated(drawn)} if drawn else metadata
            make = partial(write.created, {**document, "metadata": named}, holdings)
            new = await self._changing.made(make, write.actor, size=size)
            key = Key(call.namespace, str(new["metadata"]["name"]))
            try:
                with errors_about(call.resource, key.name):
                    stored = await call.storage.create(call.resource.key, key, new, write.actor, dry_run=write.dry_run)
            except AlreadyExistsError:
                if not drawn or attempt == ATTEMPTS - 1:
                    raise
            else:
                return await _report_write(call, write, stored)
        raise AssertionError

    async def _change(self, call: ResourceCall, write: Write, change: UpdateFunc) -> StoredObject:
        size, key = await _size(call), call.resource.key
        with errors_about(call.resource, call.key.name):
            stored = await self._changing.change(
                call.storage, key, call.key, change, write.actor, size=size, dry_run=write.dry_run
            )
        return await _report_write(call, write, stored)

    async def _document(self, call: ResourceCall, write: Write) -> dict[str, Any]:
        """Return the object in the body. Raises BadRequestError, TooLargeError, UnsupportedMediaTypeError."""
        body = await bodies.decode(await self._read(call), bodies.media_type(call.request), call.resource.kind)
        return check_envelope(write, body, call.namespace)

    async def _read(self, call: ResourceCall) -> bytes:
        return await bodies.read(call.request, self._limit, anonymous=call.actor.user == ANONYMOUS.user)

    async def _delete_options(self, call: ResourceCall) -> tuple[Mapping[str, Any], WriteOptions]:
        """Return the DeleteOptions in the body, and the write options of query and body together."""
        body = await self._read(call)
        asked: Mapping[str, Any] = {}
        if body.strip():
            asked = delete_options(await bodies.decode(body, bodies.media_type(call.request), "DeleteOptions"))
        dry_runs = (*call.request.query.getall("dryRun", []), *(asked.get("dryRun") or ()))
        return asked, write_options("DeleteOptions", {}, list(dict.fromkeys(dry_runs)))


def _patch_type(call: ResourceCall) -> str:
    """Return the media type of the patch. Raises UnsupportedMediaTypeError if the kind does not support it."""
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


def _write(call: ResourceCall, options: WriteOptions) -> Write:
    manager = options.manager or agent_manager(call.request.headers.get("User-Agent", ""))
    now, validation, dry_run = call.clock.now(), options.validation, options.dry_run
    return Write(call.resource, call.actor, now, validation, call.version, call.part, manager, dry_run)


async def _size(call: ResourceCall) -> int:
    """Return the size of the body in bytes. aiohttp has already cached the body."""
    return len(await call.request.read())


async def _report_write(call: ResourceCall, write: Write, stored: StoredObject) -> StoredObject:
    if call.resource.written is not None and not write.dry_run:
        await call.resource.written(call.resource.key, stored.revision)
    return stored


async def _deletion_warnings(call: ResourceCall, keys: Sequence[Key], options: WriteOptions) -> list[str]:
    warnings = call.resource.deletion_warnings
    return [] if warnings is None or not keys else list(await warnings(keys, options.dry_run))


async def write_answer(call: ResourceCall, write: Write, stored: StoredObject, status: int = 200) -> web.Response:
    """Respond to a write with the object in the requested form, and with the warnings."""
    if write.last is not None:
        metadata = {**write.last["metadata"], "resourceVersion": str(stored.revision)}
        stored = StoredObject(stored.key, stored.revision, msgspec.json.encode({**write.last, "metadata": metadata}))
    response = await object_answer(call, stored, status)
    add_warnings(response, (*write.noted, *write.warnings))
    return response
