"""Recovery of agents whose certificate records were lost by a restore of the hub."""

from hub.api.certificates.certificate import CertificateRecord
from hub.grpc_door.session.context import DoorContext
from hub.grpc_door.session.interceptor import RpcCall
from hub.registry.recovery.readoption import Returning, readopt
from machinery.errors import DenialCause, UnauthorizedError
from machinery.identity import agent_id, cluster_name
from machinery.wire.registration.v1 import registration_pb2 as wire


async def returning_holder(parts: DoorContext, request: wire.RecoverRequest, call: RpcCall) -> CertificateRecord:
    """Returns the record of a recovering agent; readopts a certificate lost by a restore first. Raises UnauthorizedError."""
    try:
        return await call.identify()
    except UnauthorizedError as error:
        if error.verdict is not DenialCause.CERTIFICATE_LOST:
            raise
    returning = Returning(
        parts.shown(call.context),
        cluster_name(request.cluster_name),
        agent_id(request.agent_id),
        request.cluster_uid,
        parts.default_lease_duration,
    )
    await parts.store.run(readopt, returning)
    return await call.identify()
