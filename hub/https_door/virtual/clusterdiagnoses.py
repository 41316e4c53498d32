"""ClusterDiagnoses: why a cluster is not Available, computed on read.

There is one for every name, also of clusters that never registered; it then covers their bootstrap credentials. They cannot be
listed, because each needs several reads of its own.
"""

from typing import Any
from uuid import NAMESPACE_OID, uuid5

import msgspec

from hub.api.clusterdiagnoses import Diagnosis, DiagnosisFinding
from hub.https_door.storage.virtual import VirtualStorage
from hub.ports import Transaction
from hub.registry.clusterdiagnoses import service as diagnosing
from machinery.apiserver.storage import GroupResource, Key, Page, Selection, Stored
from machinery.errors import MethodNotAllowedError, NotFoundError
from machinery.identity import ClusterName, cluster_name

KIND = "ClusterDiagnosis"


class DiagnosisStorage(VirtualStorage):
    """Each answer is one read of the database; the resourceVersion is the store's revision."""

    async def get(self, resource: GroupResource, key: Key) -> Stored:
        """Raises NotFoundError if the name cannot be a cluster's."""
        try:
            name = cluster_name(key.name)
        except ValueError as error:
            raise NotFoundError(f'{resource} "{key.name}" not found: {error}') from None
        found, revision = await self._store.read(_look, name)
        metadata = {"name": name, "uid": str(uuid5(NAMESPACE_OID, f"{KIND}/{name}")), "resourceVersion": str(revision)}
        document = {"apiVersion": self._api_version, "kind": KIND, "metadata": metadata, "status": _status(found)}
        return Stored(key, revision, msgspec.json.encode(document))

    async def list(
        self,
        resource: GroupResource,
        selection: Selection,
        *,
        limit: int | None = None,
        after: Key | None = None,
        at: int | None = None,
    ) -> Page:
        """Raises MethodNotAllowedError."""
        del selection, limit, after, at
        raise MethodNotAllowedError(f"{resource} are asked for by the name of a cluster")


def _look(tx: Transaction, name: ClusterName) -> tuple[Diagnosis, int]:
    return diagnosing.of_cluster(tx, name), tx.changes.newest()


def _status(found: Diagnosis) -> dict[str, Any]:
    cause = found.cause
    status: dict[str, Any] = {"well": found.is_well, "available": found.available or "Unknown"}
    if cause is not None:
        status["cause"] = _told(cause)
    return {**status, "steps": [_told(finding) for finding in found.findings]}


def _told(finding: DiagnosisFinding) -> dict[str, str]:
    told = {"step": finding.step, "state": str(finding.state), "reason": finding.reason, "message": finding.said}
    return {**told, "advice": finding.advice} if finding.advice else told
