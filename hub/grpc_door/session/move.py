"""Asks an agent to go to another hub, as an operator wants it: while it is not gone, and whenever it can."""

from collections.abc import Callable

from machinery.wire.session.v1 import session_pb2 as wire

REASON = "an operator moves this cluster to another hub"


class Moving:
    """Of one session. An agent is asked only where it has listed the hub as ready: others would not know what to do."""

    def __init__(self, send: Callable[[wire.HubMessage], None]) -> None:
        self._send = send
        self._ready: frozenset[str] = frozenset()
        self._target = ""
        self._asked = ""

    def listed(self, hubs: wire.Hubs) -> None:
        """The agent's list, as it is now."""
        self._ready = frozenset(hub.hub_id for hub in hubs.hubs if hub.state == wire.Hub.STATE_READY and hub.hub_id)
        self._ask()

    def wanted(self, target: str) -> None:
        """Where the operator wants it; "": it may stay."""
        self._target = target
        self._ask()

    def _ask(self) -> None:
        due = self._target if self._target in self._ready else ""
        if due and due != self._asked:
            self._send(wire.HubMessage(drain=wire.Drain(reason=REASON, target_hub_id=due)))
        self._asked = due
