"""Admits a session only if its cluster exists, is not denied and has the uid of Hello, and if no newer epoch is recorded."""

from datetime import timedelta

from hub.grpc_door.messages import SessionClusterView, read_view
from hub.grpc_door.session.context import DoorContext
from hub.ports import Transaction
from hub.registry import owners
from hub.registry.hubreplicas.service import ACTOR
from hub.registry.owners import SecondAgentError
from machinery.errors import AlreadyExistsError
from machinery.identity import AgentId, ClusterName
from machinery.product import version
from machinery.wire.session.v1 import session_pb2 as wire

PROTOCOL = "v1"
CAPABILITIES = ("drain",)


async def admit(parts: DoorContext, cluster: ClusterName, agent: AgentId, hello: wire.Hello) -> SessionClusterView:
    """Admits a session: records its epoch, unless this epoch is recorded already, and returns the SessionClusterView.

    Raises NotFoundError, StaleEpochError, BadRequestError (invalid epoch), ForbiddenError (denied cluster) and
    AlreadyExistsError (another cluster has the name, or another agent has the session). Records a second agent for operators.
    """
    try:
        view, is_claimed = await parts.store.read(_look, cluster, agent, hello)
    except SecondAgentError as error:
        await parts.store.run(owners.note_second, cluster, error.holder, error.other, ACTOR)
        raise
    if not is_claimed:
        await parts.store.run(owners.claim, cluster, hello.epoch)
    return view


def welcome(parts: DoorContext, session: str, interval: timedelta) -> bytes:
    """Returns the encoded message Welcome, which the hub sends first."""
    message = wire.Welcome(
        hub_id=parts.hub_id, hub_version=version(), protocol_version=PROTOCOL, capabilities=CAPABILITIES, session_id=session
    )
    message.hub_time.FromDatetime(parts.clock.now())
    message.beat_interval.FromTimedelta(interval)
    return wire.HubMessage(welcome=message).SerializeToString()


def _look(tx: Transaction, cluster: ClusterName, agent: AgentId, hello: wire.Hello) -> tuple[SessionClusterView, bool]:
    view = read_view(tx, cluster)
    if hello.cluster_uid and view.uid and view.uid != hello.cluster_uid:
        raise AlreadyExistsError(
            "this cluster name belongs to another cluster (its uid differs): register under another name, "
            "or have the other ManagedCluster deleted first"
        )
    if view.denied:
        raise owners.denied_error(cluster, view.denial)
    return view, owners.is_claimed(tx, cluster, hello.epoch, agent)
