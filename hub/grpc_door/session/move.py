"""Sends an operator's order to move to another hub to the agent, as soon as the agent can follow it."""

from collections.abc import Callable

from machinery.wire.session.v1 import session_pb2 as wire

REASON = "an operator moves this cluster to another hub"


class Moving:
    """Moves of one session. The order is sent only if the agent lists the target hub as ready; else it could not follow it."""

    def __init__(self, send: Callable[[wire.HubMessage], None]) -> None:
        self._send = send
        self._ready: frozenset[str] = frozenset()
        self._target = ""
        self._asked = ""

    def listed(self, hubs: wire.Hubs) -> None:
        """Takes the agent's current hub list."""
        self._ready = frozenset(hub.hub_id for hub in hubs.hubs if hub.state == wire.Hub.STATE_READY and hub.hub_id)
        self._ask()

    def wanted(self, target: str) -> None:
        """Takes the hub id that the operator moves the cluster to; "": none."""
        self._target = target
        self._ask()

    def _ask(self) -> None:
        due = self._target if self._target in self._ready else ""
        if due and due != self._asked:
            self._send(wire.HubMessage(drain=wire.Drain(reason=REASON, target_hub_id=due)))
        self._asked = due
