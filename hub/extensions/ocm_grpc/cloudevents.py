"""CloudEvents of OCM's gRPC driver: the protobuf messages, and the translation to API requests and from API objects.

The messages are those of the CloudEvents protobuf format. They are in a separate descriptor pool, so that the process may also
load another package that registers them. Sources: OCM's sdk-go pkg/cloudevents (2026), the CloudEvents specification.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4

import msgspec
from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from hub.api.certificatesigningrequests import ADDON_LABEL
from hub.api.liveness import LEASE_NAME
from hub.api.meta import document as doc
from machinery.errors import InvalidError
from machinery.identity import CLUSTER_LABEL, SIGNER, ClusterName, cluster_name
from machinery.meta import bounded_json as boundedjson
from machinery.meta.bounded_json import JsonError
from machinery.meta.objects import Document

PACKAGE = "io.cloudevents.v1"
SERVICE = f"{PACKAGE}.CloudEventService"
_FIELD = descriptor_pb2.FieldDescriptorProto
_ATTRIBUTES = "ce_boolean:8 ce_integer:5 ce_string:9 ce_bytes:12 ce_uri:9 ce_uri_ref:9 ce_timestamp:google.protobuf.Timestamp"
_DATA = "binary_data:12 text_data:9 proto_data:google.protobuf.Any"


def _add_fields(message: descriptor_pb2.DescriptorProto, fields: str, oneof: str = "") -> None:
    """Add `name:type` fields with consecutive numbers. A type is a FieldDescriptorProto.Type or a message's name."""
    if oneof:
        message.oneof_decl.add(name=oneof)
    for pair in fields.split():
        name, _, kind = pair.partition(":")
        field = message.field.add(name=name, number=len(message.field) + 1, label=_FIELD.LABEL_OPTIONAL)
        if kind.isdecimal():
            field.type = int(kind)  # type: ignore[assignment]
        else:
            field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{kind}"
        if oneof:
            field.oneof_index = 0


def _messages() -> Mapping[str, Any]:
    """Return the classes of the protobuf messages by name."""
    pool = descriptor_pool.DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(name="io/cloudevents/v1/cloudevent.proto", package=PACKAGE, syntax="proto3")
    for imported in (any_pb2, timestamp_pb2):
        pool.AddSerializedFile(imported.DESCRIPTOR.serialized_pb)
        file.dependency.append(imported.DESCRIPTOR.name)
    event = file.message_type.add(name="CloudEvent")
    _add_fields(event, f"id:9 source:9 spec_version:9 type:9 attributes:{PACKAGE}.CloudEvent.AttributesEntry")
    event.field[-1].label = _FIELD.LABEL_REPEATED
    _add_fields(event, _DATA, "data")
    entry = event.nested_type.add(name="AttributesEntry")
    entry.options.map_entry = True
    _add_fields(entry, f"key:9 value:{PACKAGE}.CloudEventAttributeValue")
    _add_fields(file.message_type.add(name="CloudEventAttributeValue"), _ATTRIBUTES, "attr")
    _add_fields(file.message_type.add(name="PublishRequest"), f"event:{PACKAGE}.CloudEvent")
    _add_fields(file.message_type.add(name="SubscriptionRequest"), "source:9 cluster_name:9 data_type:9")
    pool.AddSerializedFile(file.SerializeToString())
    names = [message.name for message in file.message_type]
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in names}


_CLASSES = _messages()
CloudEvent, PublishRequest = _CLASSES["CloudEvent"], _CLASSES["PublishRequest"]
SubscriptionRequest = _CLASSES["SubscriptionRequest"]


@dataclass(frozen=True, slots=True)
class DataType:
    """A type of objects. `path`: their API path. `query`: selects the objects of one cluster, whose name replaces `{}`."""

    name: str
    path: str
    query: str = ""

    @staticmethod
    def of(group: str, version: str, resource: str, *, query: str = "", namespaced: bool = True) -> "DataType":
        root = f"/apis/{group}/{version}{'/namespaces/{}' if namespaced else ''}"
        return DataType(f"{group}.{version}.{resource}", f"{root}/{resource}", query)

    def collection(self, cluster: ClusterName) -> str:
        """Return the API path of the objects of a cluster, without the query."""
        return self.path.format(cluster)


GRPC_SIGNER = "open-cluster-management.io/grpc"
"""Signer in certificate requests of OCM's agents with this driver. The hub stores these requests with SIGNER instead."""
_OCM = "open-cluster-management.io"
CLUSTERS = DataType.of(f"cluster.{_OCM}", "v1", "managedclusters", query="fieldSelector=metadata.name%3D{}", namespaced=False)
REQUESTS = DataType.of(
    "certificates.k8s.io",
    "v1",
    "certificatesigningrequests",
    query=f"labelSelector={_OCM}%2Fcluster-name%3D{{}}",
    namespaced=False,
)
LEASES = DataType.of("coordination.k8s.io", "v1", "leases", query=f"fieldSelector=metadata.name%3D{LEASE_NAME}")
ADDONS, OLD_ADDONS = (DataType.of(f"addon.{_OCM}", version, "managedclusteraddons") for version in ("v1beta1", "v1alpha1"))
EVENTS = DataType.of("events.k8s.io", "v1", "events")
TOKENS = DataType("authentication.k8s.io.v1.tokenrequests", "/api/v1/namespaces/{}/serviceaccounts")
DATA_TYPES = {each.name: each for each in (CLUSTERS, REQUESTS, LEASES, ADDONS, OLD_ADDONS, EVENTS, TOKENS)}
SUBSCRIBED = frozenset(DATA_TYPES) - {EVENTS.name}

RESYNC, REPORT = "spec.resync_request", "status.update_request"
_WRITES = {
    (CLUSTERS, "spec.create_request"): ("POST", ""),
    (CLUSTERS, REPORT): ("PUT", "/status"),
    (REQUESTS, "spec.create_request"): ("POST", ""),
    (LEASES, "spec.update_request"): ("PUT", ""),
    (ADDONS, REPORT): ("PUT", "/status"),
    (OLD_ADDONS, REPORT): ("PUT", "/status"),
    (EVENTS, "spec.create_request"): ("POST", ""),
    (EVENTS, "spec.update_request"): ("PATCH", ""),
    (TOKENS, "spec.create_request"): ("POST", "/token"),
}
"""By data type and action: the method, and the subresource."""
SPEC_VERSION = "1.0"
SOURCE = "kube"
HEARTBEAT = "io.open-cluster-management.cloudevents.heartbeat"
MAX_ATTRIBUTES = 64
MAX_RESYNC = 10_000
"""Largest number of objects that a resync may list."""
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class PublishedEvent:
    """A decoded event of an agent. `action`: as in `spec.create_request`. `body`: the object, or the agent's list (resync)."""

    data_type: DataType
    action: str
    cluster: ClusterName
    body: Document

    @property
    def is_agents_request(self) -> bool:
        """Whether the event creates a certificate request for the agent itself."""
        return self.data_type is REQUESTS and self.action != RESYNC and ADDON_LABEL not in doc.labels(self.body)


@dataclass(frozen=True, slots=True)
class ApiRequest:
    method: str
    path: str
    body: bytes


def parse_subscription(request: Any) -> tuple[DataType, ClusterName]:
    """Return data type and cluster of a SubscriptionRequest. Raises InvalidError."""
    if request.data_type not in SUBSCRIBED:
        raise InvalidError(f'subscriptions to the data type "{request.data_type[:80]}" are not supported')
    return DATA_TYPES[request.data_type], cluster_name(request.cluster_name)


def published(event: Any) -> PublishedEvent:
    """Decode a CloudEvent. Raises InvalidError."""
    data_type, action = _parse_type(event.type)
    if event.spec_version != SPEC_VERSION or len(event.attributes) > MAX_ATTRIBUTES:
        raise InvalidError(f"the event must have the spec_version {SPEC_VERSION} and at most {MAX_ATTRIBUTES} attributes")
    named = event.attributes.get("ce-clustername")
    cluster = cluster_name(named.ce_string if named is not None else "")
    content_type = event.attributes.get("contenttype")
    if content_type is not None and content_type.ce_string.partition(";")[0].strip() != "application/json":
        raise InvalidError("the event's contenttype must be application/json")
    try:
        body = boundedjson.decode(event.binary_data)
    except JsonError as error:
        raise InvalidError(f"the event's binary_data must be a JSON object: {error}") from None
    if not isinstance(body, dict):
        raise InvalidError("the event's binary_data must be a JSON object")
    return PublishedEvent(data_type, action, cluster, body)


def _parse_type(text: str) -> tuple[DataType, str]:
    name, _, action = text.rpartition(".")
    name, _, part = name.rpartition(".")
    data_type, action = DATA_TYPES.get(name), f"{part}.{action}"
    if data_type is None:
        raise InvalidError(f'the data type of the event type "{text[:120]}" is not served')
    if (data_type, action) not in _WRITES and (action != RESYNC or name not in SUBSCRIBED):
        raise InvalidError(f'the action "{action[:80]}" is not supported for {name}')
    return data_type, action


def api_request(event: PublishedEvent) -> ApiRequest:
    """Return the API request for an event. Raises InvalidError: invalid name, or the object belongs to another cluster."""
    method, part = _WRITES[event.data_type, event.action]
    body, data_type, cluster = dict(event.body), event.data_type, event.cluster
    key = doc.key(body)
    if not _NAME.fullmatch(key.name):
        raise InvalidError("the object needs a valid metadata.name")
    claimed = (
        doc.labels(body).get(CLUSTER_LABEL) if data_type is REQUESTS else key.name if data_type is CLUSTERS else key.namespace
    )
    if claimed != cluster:
        raise InvalidError(f'the event is for cluster "{cluster}", but its object is for another cluster')
    path = data_type.collection(cluster)
    if method != "POST" or data_type is TOKENS:
        path = f"{path}/{key.name}{part}"
    if data_type is TOKENS:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": body.get("spec") or {}}
    elif method == "PATCH":
        body = {"series": body.get("series")}
    elif method == "POST":
        body.pop("status", None)
    if data_type is REQUESTS and doc.mapping(body, "spec").get("signerName") == GRPC_SIGNER:
        body = doc.with_spec(body, signerName=SIGNER)
    return ApiRequest(method, path, msgspec.json.encode(body))


def claimed_objects(event: PublishedEvent) -> frozenset[str]:
    """Return the uids of the objects that the agent has, as a resync event lists them. Raises InvalidError."""
    listed = event.body.get("resourceVersions")
    if listed is None:
        return frozenset()
    if not isinstance(listed, list) or len(listed) > MAX_RESYNC or not all(isinstance(each, dict) for each in listed):
        raise InvalidError(f"resourceVersions must be a list of at most {MAX_RESYNC} objects")
    return frozenset(str(each.get("resourceID"))[:128] for each in listed)


def object_event(data_type: DataType, cluster: ClusterName, action: str, document: Document) -> bytes:
    """Return the event for an object. If the object is being deleted, the event has no data: the agent forgets the object."""
    metadata = document["metadata"]
    if deleted := metadata.get("deletionTimestamp"):
        return deletion_event(data_type, cluster, metadata["uid"], datetime.fromisoformat(deleted), action)
    shown = doc.with_metadata(document, managedFields=None)
    if (
        data_type is REQUESTS
        and ADDON_LABEL not in doc.labels(shown)
        and doc.mapping(shown, "spec").get("signerName") == SIGNER
    ):
        shown = doc.with_spec(shown, signerName=GRPC_SIGNER)
    event = _event(data_type, cluster, action, str(metadata.get("uid") or ""))
    if version := metadata.get("resourceVersion"):
        event.attributes["ce-resourceversion"].ce_string = version
    event.attributes["contenttype"].ce_string = "application/json"
    event.binary_data = msgspec.json.encode(shown)
    return bytes(event.SerializeToString())


def deletion_event(
    data_type: DataType, cluster: ClusterName, uid: str, at: datetime, action: str = "spec.delete_request"
) -> bytes:
    """Return the event after which the agent forgets the object with this uid. `at`: time of the deletion."""
    event = _event(data_type, cluster, action, uid)
    event.attributes["ce-deletiontimestamp"].ce_timestamp.FromDatetime(at)
    return bytes(event.SerializeToString())


def heartbeat_event() -> bytes:
    return bytes(CloudEvent(id=str(uuid4()), spec_version=SPEC_VERSION, type=HEARTBEAT).SerializeToString())


def _event(data_type: DataType, cluster: ClusterName, action: str, uid: str) -> Any:
    kind = f"{data_type.name}.{action}"
    event = CloudEvent(id=str(uuid4()), source=SOURCE, spec_version=SPEC_VERSION, type=kind)
    for name, text in (("clustername", cluster), ("originalsource", ""), ("resourceid", uid)):
        event.attributes[f"ce-{name}"].ce_string = text
    return event
