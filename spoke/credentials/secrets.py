"""Secrets of one namespace in the management cluster, over its Kubernetes API."""

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Mapping, Sequence

from machinery import product
from machinery.errors import ConflictError, InvalidError, NotFoundError
from machinery.kube.client import KubeClient, Object, Resource
from machinery.kube.reflector import ObjectKey, Reflector, mirrored
from spoke.ports import Secrets, SecretSnapshot

SECRETS = Resource("", "v1", "secrets")
PART_OF = "app.kubernetes.io/part-of"
MISSING = SecretSnapshot(contents={}, version=None)


class KubeSecrets(Secrets):
    """The secrets of `namespace`. A write keeps the labels, annotations and type that others gave a secret."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def read(self, name: str) -> SecretSnapshot:
        """The secret; a missing one is a snapshot without version. Raises InvalidError for contents that are not base64."""
        try:
            return _snapshot(await self._client.get(self._path(name)))
        except NotFoundError:
            return MISSING

    async def write(self, name: str, contents: Mapping[str, bytes], version: str | None) -> SecretSnapshot:
        encoded = {key: base64.b64encode(value).decode() for key, value in contents.items()}
        if version is None:
            return _snapshot(await self._client.create(SECRETS.path(namespace=self._namespace), self._new(name, encoded)))
        try:
            present = await self._client.get(self._path(name))
            present["metadata"]["resourceVersion"] = version
            return _snapshot(await self._client.update(self._path(name), {**present, "data": encoded}))
        except NotFoundError as error:
            raise ConflictError(f'secret "{name}" was deleted since it was read') from error

    async def delete(self, name: str) -> None:
        try:
            await self._client.delete(self._path(name))
        except NotFoundError:
            return

    async def named(self, prefix: str) -> Sequence[str]:
        query = {"labelSelector": f"{PART_OF}={product.PART_OF}"}
        path = SECRETS.path(namespace=self._namespace)
        found = [str(item["metadata"]["name"]) async for page in self._client.pages(path, query) for item in page.items]
        return [name for name in found if name.startswith(prefix)]

    async def changes(self, name: str) -> AsyncIterator[SecretSnapshot]:
        """The secret now and after every change; a reader that is slow sees the newest only."""
        latest = MISSING
        news = asyncio.Event()

        def take(_key: ObjectKey, value: SecretSnapshot | None) -> None:
            nonlocal latest
            latest = value or MISSING
            news.set()

        reflector = Reflector(
            self._client,
            SECRETS.path(namespace=self._namespace),
            _snapshot_or_empty,
            query={"fieldSelector": f"metadata.name={name}"},
            on_change=take,
        )
        async with mirrored(reflector) as wait:
            await wait(reflector.synced)
            while True:
                news.clear()
                yield latest
                await wait(news)

    def _path(self, name: str) -> str:
        return SECRETS.path(name, namespace=self._namespace)

    def _new(self, name: str, encoded: Mapping[str, str]) -> Object:
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": name,
                "namespace": self._namespace,
                "labels": {PART_OF: product.PART_OF},
            },
            "type": "Opaque",
            "data": dict(encoded),
        }


def _snapshot(secret: Object) -> SecretSnapshot:
    version = str(secret["metadata"]["resourceVersion"])
    try:
        contents = {key: base64.b64decode(value or "", validate=True) for key, value in (secret.get("data") or {}).items()}
    except (binascii.Error, ValueError) as error:
        raise InvalidError(f'secret "{secret["metadata"]["name"]}" holds something that is not base64') from error
    return SecretSnapshot(contents=contents, version=version)


def _snapshot_or_empty(secret: Object) -> SecretSnapshot:
    """A secret that cannot be read is told as one without contents: the reader treats it as half-written."""
    try:
        return _snapshot(secret)
    except InvalidError:
        return SecretSnapshot(contents={}, version=str(secret["metadata"]["resourceVersion"]))
