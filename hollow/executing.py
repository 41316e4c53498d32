"""Answers exec requests for hollow pods over WebSocket. Only the command `print` of a kube cert agent can be executed."""

import base64
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from aiohttp import web

from hollow.objects import Document
from machinery.apiserver.http.filters import Filter, Incoming, Inner
from machinery.errors import BadRequestError, ForbiddenError, NotFoundError
from machinery.identity import OPERATOR_GROUP

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDOUT, STDERR, ERROR = 1, 2, 3
CHUNK = 512
"""Largest number of bytes per message. An output is split into several messages, as a kubelet does."""

Find = Callable[[str, str], Awaitable[Document]]
"""Finds a pod by namespace and name. Raises NotFoundError."""


def exec_filter(find: Find, files: Mapping[str, bytes]) -> Filter:
    """Return a filter for exec requests, which runs after authentication. `files`: content by host path, equal on all nodes."""

    async def answer(incoming: Incoming, inner: Inner) -> web.StreamResponse:
        attributes, request = incoming.attributes, incoming.request
        if (attributes.resource, attributes.subresource) != ("pods", "exec"):
            return await inner(incoming)
        name = attributes.name
        if OPERATOR_GROUP not in incoming.actor.groups:
            raise ForbiddenError(f'pods "{name}" is forbidden: User "{incoming.actor.user}" cannot exec there')
        pod = await find(attributes.namespace, name)
        if (pod.get("status") or {}).get("phase") != "Running":
            raise BadRequestError(f"pod {name} does not run")
        offered = {each.strip() for each in request.headers.get("Sec-WebSocket-Protocol", "").split(",")}
        if not offered & set(PROTOCOLS):
            raise BadRequestError(f"unable to upgrade: expected one of {', '.join(PROTOCOLS)}")
        wanted = request.query.get("container", "")
        container = next((each for each in pod["spec"]["containers"] if wanted in ("", each["name"])), None)
        if container is None:
            raise NotFoundError(f"container {wanted} is not valid for pod {name}")
        socket = web.WebSocketResponse(protocols=PROTOCOLS)
        await socket.prepare(request)
        code, stdout, stderr = _run(request.query.getall("command", []), pod, container, files)
        for stream, option, content in ((STDOUT, "stdout", stdout), (STDERR, "stderr", stderr)):
            if request.query.get(option) == "true":
                for start in range(0, len(content), CHUNK):
                    await socket.send_bytes(bytes([stream]) + content[start : start + CHUNK])
        await socket.send_bytes(bytes([ERROR]) + json.dumps(_status(code)).encode())
        await socket.close()
        return socket

    return answer


def _run(command: list[str], pod: Document, container: Document, files: Mapping[str, bytes]) -> tuple[int, bytes, bytes]:
    if command[-1:] != ["print"]:
        return 127, b"", f"{' '.join(command)}: no such program in a hollow pod\n".encode()
    paths = {each["name"]: str(each.get("value") or "") for each in container.get("env") or ()}
    content: dict[str, str] = {}
    for name, variable in (("tls.crt", "CERT_PATH"), ("tls.key", "KEY_PATH")):
        found = files.get(on_host(paths.get(variable, ""), pod, container))
        if found is None:
            return 1, b"", f"{paths.get(variable)} cannot be read: No such file or directory\n".encode()
        content[name] = base64.b64encode(found).decode()
    return 0, json.dumps(content).encode() + b"\n", b""


def on_host(path: str, pod: Document, container: Document) -> str:
    """Return the host path of the file `path` in a container; "" if no hostPath mount of the container contains the file."""
    hosts: Mapping[str, Any] = {volume["name"]: volume.get("hostPath") for volume in pod["spec"].get("volumes") or ()}
    mounts = sorted(container.get("volumeMounts") or (), key=lambda mount: len(mount["mountPath"]), reverse=True)
    for mount in mounts:
        host = hosts.get(mount["name"])
        if host and PurePosixPath(path).is_relative_to(mount["mountPath"]):
            return str(PurePosixPath(host["path"], PurePosixPath(path).relative_to(mount["mountPath"])))
    return ""


def _status(code: int) -> Document:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }
