"""Exec into hollow pods over the real WebSocket channel. The only program is a cert agent's `print`, on hollow files."""

import base64
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from hollow.objects import Document
from machinery.apiserver.access import Authenticator
from machinery.apiserver.http.responses import ResponseForm, error_answer
from machinery.errors import BadRequestError, ForbiddenError, MusterError, NotFoundError
from machinery.identity import OPERATOR_GROUP

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDOUT, STDERR, ERROR = 1, 2, 3
CHUNK = 512
"""Bytes per message: an output is split into several messages, as by a kubelet."""
_PATH = re.compile(r"/api/v1/namespaces/([^/]+)/pods/([^/]+)/exec")

Find = Callable[[str, str], Awaitable[Document]]
"""Finds a pod by namespace and name. Raises NotFoundError."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Exit code and output of a command."""

    code: int
    stdout: bytes = b""
    stderr: bytes = b""


class ExecEndpoint:
    """Middleware for exec. `files`: host files of all nodes by path; the mapping may change at any time."""

    def __init__(self, authenticator: Authenticator, find: Find, files: Mapping[str, bytes]) -> None:
        self._authenticator = authenticator
        self._find = find
        self._files = files

    def middleware(self) -> Middleware:
        @web.middleware
        async def act(request: web.Request, handler: Handler) -> web.StreamResponse:
            asked = _PATH.fullmatch(request.path)
            if asked is None:
                return await handler(request)
            try:
                container = await self._container(request, *asked.groups())
            except MusterError as error:
                return error_answer(error, ResponseForm())
            return await self._run(request, *container)

        return act

    async def _container(self, request: web.Request, namespace: str, name: str) -> tuple[Document, Document]:
        """The pod and its container. Raises MusterError."""
        actor = await self._authenticator.authenticate(request)
        if OPERATOR_GROUP not in actor.groups:
            raise ForbiddenError(f'pods "{name}" is forbidden: User "{actor.user}" cannot exec there')
        pod = await self._find(namespace, name)
        if (pod.get("status") or {}).get("phase") != "Running":
            raise BadRequestError(f"pod {name} does not run")
        offered = {each.strip() for each in request.headers.get("Sec-WebSocket-Protocol", "").split(",")}
        if not offered & set(PROTOCOLS):
            raise BadRequestError(f"unable to upgrade: expected one of {', '.join(PROTOCOLS)}")
        wanted = request.query.get("container", "")
        for container in pod["spec"]["containers"]:
            if wanted in ("", container["name"]):
                return pod, container
        raise NotFoundError(f"container {wanted} is not valid for pod {name}")

    async def _run(self, request: web.Request, pod: Document, container: Document) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=PROTOCOLS)
        await socket.prepare(request)
        ended = self._execute(request.query.getall("command", []), pod, container)
        for stream, content in ((STDOUT, ended.stdout), (STDERR, ended.stderr), (ERROR, _status(ended.code))):
            if stream == ERROR or request.query.get({STDOUT: "stdout", STDERR: "stderr"}[stream]) == "true":
                for start in range(0, len(content), CHUNK if stream != ERROR else len(content)):
                    size = CHUNK if stream != ERROR else len(content)
                    await socket.send_bytes(bytes([stream]) + content[start : start + size])
        await socket.close()
        return socket

    def _execute(self, command: list[str], pod: Document, container: Document) -> CommandResult:
        if command[-1:] != ["print"]:
            return CommandResult(127, stderr=f"{' '.join(command)}: no such program in a hollow pod\n".encode())
        paths = {each["name"]: str(each.get("value") or "") for each in container.get("env") or ()}
        content: dict[str, str] = {}
        for name, variable in (("tls.crt", "CERT_PATH"), ("tls.key", "KEY_PATH")):
            found = self._files.get(on_host(paths.get(variable, ""), pod, container))
            if found is None:
                return CommandResult(1, stderr=f"{paths.get(variable)} cannot be read: No such file or directory\n".encode())
            content[name] = base64.b64encode(found).decode()
        return CommandResult(0, stdout=json.dumps(content).encode() + b"\n")


def on_host(path: str, pod: Document, container: Document) -> str:
    """Host path of a container's file, by the mount that contains it; "": no hostPath mount contains it."""
    hosts: Mapping[str, Any] = {volume["name"]: volume.get("hostPath") for volume in pod["spec"].get("volumes") or ()}
    mounts = sorted(container.get("volumeMounts") or (), key=lambda mount: len(mount["mountPath"]), reverse=True)
    for mount in mounts:
        host = hosts.get(mount["name"])
        if host and PurePosixPath(path).is_relative_to(mount["mountPath"]):
            return str(PurePosixPath(host["path"], PurePosixPath(path).relative_to(mount["mountPath"])))
    return ""


def _status(code: int) -> bytes:
    """The Status that ends a channel."""
    if code == 0:
        return json.dumps({"metadata": {}, "status": "Success"}).encode()
    causes = [{"reason": "ExitCode", "message": str(code)}]
    failed = {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": causes},
    }
    return json.dumps(failed).encode()
