"""Discovery of groups, versions and resources, in the classic and in the aggregated form.

Groups are ordered by priority, then by name. Clients try them in this order when a short name is ambiguous.
"""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from machinery.apiserver.http.responses import JSON, clauses
from machinery.apiserver.resource import ApiGroup, Resource

AGGREGATED_KIND = "APIGroupDiscoveryList"


def aggregated_version(accept: str) -> str | None:
    """Return `v2` or `v2beta1` if the client prefers the aggregated form; None: it prefers the classic form."""
    for clause in clauses(accept):
        asked = clause.parameters
        if (
            asked.get("as") == AGGREGATED_KIND
            and asked.get("g") == "apidiscovery.k8s.io"
            and asked.get("v") in ("v2", "v2beta1")
        ):
            return asked["v"]
        if clause.media in (JSON, "application/yaml", "*/*", "application/*") and "as" not in asked:
            return None
    return None


def aggregated_media(version: str) -> str:
    return f"{JSON};g=apidiscovery.k8s.io;v={version};as={AGGREGATED_KIND}"


def etag(body: bytes) -> str:
    return f'"{hashlib.sha512(body).hexdigest().upper()}"'


class Discovery:
    def __init__(self, groups: Sequence[ApiGroup]) -> None:
        """Raises ValueError if a group is duplicate or empty, or if a resource has an invalid name, group or version."""
        _check(groups)
        self._core = [group for group in groups if not group.name]
        self._named = sorted((group for group in groups if group.name), key=lambda group: (-group.priority, group.name))
        self._pages: dict[tuple[str, bool], tuple[bytes, str]] = {}

    def page(self, parts: Sequence[str]) -> dict[str, Any] | None:
        """Return the document at `/api`, `/apis`, `/apis/<group>` or a version's path (`parts`: segments). None: no page."""
        match parts:
            case ["api"]:
                versions = [version for group in self._core for version in group.versions]
                return {"kind": "APIVersions", "versions": versions, "serverAddressByClientCIDRs": []}
            case ["apis"]:
                return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(group) for group in self._named]}
            case ["apis", name]:
                found = (group for group in self._named if group.name == name)
                return next(({"kind": "APIGroup", "apiVersion": "v1", **_group(group)} for group in found), None)
            case ["api", version]:
                return self._resource_list(self._core, "", version)
            case ["apis", name, version]:
                return self._resource_list(self._named, name, version)
        return None

    def _resource_list(self, groups: Sequence[ApiGroup], name: str, version: str) -> dict[str, Any] | None:
        for group in groups:
            if group.name == name and version in group.versions:
                listed = [entry for resource in served(group, version) for entry in _classic(resource)]
                shown = {"apiVersion": "v1", "groupVersion": f"{name}/{version}"} if name else {"groupVersion": version}
                return {"kind": "APIResourceList", **shown, "resources": listed}
        return None

    def aggregated(self, version: str, *, core: bool) -> tuple[bytes, str]:
        """Return `/api` (`core`) or `/apis` in the aggregated form, and its ETag. The result is cached."""
        if (version, core) not in self._pages:
            items = [_aggregated_group(group) for group in (self._core if core else self._named)]
            envelope = {"kind": AGGREGATED_KIND, "apiVersion": f"apidiscovery.k8s.io/{version}", "metadata": {}}
            body = msgspec.json.encode({**envelope, "items": items})
            self._pages[version, core] = (body, etag(body))
        return self._pages[version, core]

    def paths(self) -> Iterator[str]:
        """Yield the API paths for the response of `/`."""
        for group in self._core:
            yield from ("/api", *(f"/api/{version}" for version in group.versions))
        yield from ("/apis", "/apis/")
        for group in self._named:
            yield from (f"/apis/{group.name}", *(f"/apis/{group.name}/{version}" for version in group.versions))


def _check(groups: Sequence[ApiGroup]) -> None:
    names = [group.name for group in groups]
    if len(names) != len(set(names)):
        raise ValueError(f"a group is declared twice: {sorted(name for name in names if names.count(name) > 1)}")
    for group in groups:
        if not group.resources:
            raise ValueError(f'the group "{group.name}" has no resources')
        for resource in group.resources:
            if resource.group != group.name or not resource.version or resource.name != resource.name.lower():
                raise ValueError(f'"{resource.name}" cannot be served in the group "{group.name}"')


def served(group: ApiGroup, version: str) -> Iterator[Resource]:
    """Return an iterator over the resources of a group that are served in `version`."""
    return (resource for resource in group.resources if version in resource.served_versions)


def _group(group: ApiGroup) -> dict[str, Any]:
    versions = [{"groupVersion": f"{group.name}/{version}", "version": version} for version in group.versions]
    return {"name": group.name, "versions": versions, "preferredVersion": versions[0]}


def _names(resource: Resource) -> dict[str, Any]:
    return {
        "verbs": list(resource.verbs),
        **({"shortNames": list(resource.short_names)} if resource.short_names else {}),
        **({"categories": list(resource.categories)} if resource.categories else {}),
    }


def _classic(resource: Resource) -> Iterator[dict[str, Any]]:
    names = {"name": resource.name, "singularName": resource.singular_name}
    entry = {**names, "namespaced": resource.namespaced, "kind": resource.kind, **_names(resource)}
    yield entry if resource.answers is not None else {**entry, "storageVersionHash": _storage_hash(resource)}
    for part in resource.subresources:
        asked = part.question
        yield {
            "name": f"{resource.name}/{part.name}",
            "singularName": "",
            "namespaced": resource.namespaced,
            **({"group": asked.group, "version": asked.version} if asked is not None else {}),
            "kind": asked.kind if asked is not None else resource.kind,
            "verbs": list(part.verbs),
        }


def _storage_hash(resource: Resource) -> str:
    named = f"{resource.group}/{resource.version}/{resource.kind}"
    return base64.b64encode(hashlib.sha256(named.encode()).digest()[:8]).decode()


def _aggregated_group(group: ApiGroup) -> dict[str, Any]:
    versions = [
        {
            "version": version,
            "resources": [_aggregated(resource, version) for resource in served(group, version)],
            "freshness": "Current",
        }
        for version in group.versions
    ]
    return {"metadata": {"name": group.name} if group.name else {}, "versions": versions}


def _aggregated(resource: Resource, version: str) -> dict[str, Any]:
    kind = {"group": resource.group, "version": version, "kind": resource.kind}
    entry: dict[str, Any] = {
        "resource": resource.name,
        "responseKind": kind,
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular_name,
        **_names(resource),
    }
    parts = []
    for part in resource.subresources:
        asked = part.question
        answer = kind if asked is None else {"group": asked.group, "version": asked.version, "kind": asked.kind}
        parts.append({"subresource": part.name, "responseKind": answer, "verbs": list(part.verbs)})
    return {**entry, "subresources": parts} if parts else entry
