"""Encoding of a pending request and its names in a secret, written before the request is sent."""

from machinery.errors import MusterError
from machinery.identity import agent_id, cluster_name
from machinery.pki import parse_request, public_key_of
from spoke.credentials.slot import Contents
from spoke.domain.bootstrap import Pending
from spoke.domain.credential import AGENT_NAME, CLUSTER_NAME, PENDING_KEY, PENDING_REQUEST, REQUEST_NAME
from spoke.domain.names import AgentNames


def names_contents(names: AgentNames) -> dict[str, bytes]:
    return {CLUSTER_NAME: names.cluster.encode(), AGENT_NAME: names.agent.encode()}


def pending_contents(pending: Pending) -> dict[str, bytes]:
    """The keys of a pending request in its secret."""
    contents = {**names_contents(pending.names), PENDING_KEY: pending.key, PENDING_REQUEST: pending.request}
    return {**contents, REQUEST_NAME: pending.request_name.encode()} if pending.request_name else contents


def stored_names(contents: Contents) -> AgentNames:
    """The names in a secret. Raises InvalidError."""
    cluster, agent = (contents.get(key, b"").decode(errors="replace").strip() for key in (CLUSTER_NAME, AGENT_NAME))
    return AgentNames(cluster_name(cluster), agent_id(agent))


def pends_for(contents: Contents, public_key: bytes) -> bool:
    """Whether the pending request produced the certificate over `public_key`; it is then used up."""
    pending = read_pending(contents)
    return pending is not None and public_key_of(pending.key) == public_key


def read_pending(contents: Contents) -> Pending | None:
    """The pending request of a secret; None when there is none or it is incomplete."""
    parts = [contents.get(key, b"") for key in (PENDING_KEY, PENDING_REQUEST)]
    if not all(parts):
        return None
    try:
        if parse_request(parts[1]).public_key != public_key_of(parts[0]):
            return None
        names = stored_names(contents)
    except MusterError:
        return None
    return Pending(names, parts[0], parts[1], contents.get(REQUEST_NAME, b"").decode())
