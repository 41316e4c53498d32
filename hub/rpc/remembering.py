"""Beats and reports of one session in the audit: only where the policy asks for them, which is decided once per session."""

from dataclasses import replace

from hub.domain.audit import Level, Stage
from hub.rpc.asking import Asking
from hub.rpc.calls import Call
from machinery.apiserver.access import Attributes
from machinery.errors import MusterError
from machinery.identity import ClusterName


class Remembered:
    """`beats`: whether `beat` is to be called, so that a beat costs nothing otherwise."""

    def __init__(self, call: Call, cluster: ClusterName, asking: Asking) -> None:
        self._call = call
        self._cluster = cluster
        self._asking = asking
        self.beats = self._wanted(asking.beat(cluster))
        self._statuses = self._wanted(asking.status(cluster))

    def beat(self) -> None:
        self._remember(self._asking.beat(self._cluster), None)

    def status(self, error: MusterError | None) -> None:
        """The outcome of a status report."""
        if self._statuses:
            self._remember(self._asking.status(self._cluster), error)

    def addon(self, name: str, error: MusterError | None) -> None:
        """The outcome of an add-on's report."""
        self._remember(self._asking.addon(self._cluster, name), error)

    def _wanted(self, asked: Attributes) -> bool:
        verdict = self._call.parts.auditor.verdict(self._call.actor, asked)
        return verdict.level is not Level.NONE and verdict.remembers(Stage.RESPONSE_COMPLETE)

    def _remember(self, asked: Attributes, error: MusterError | None) -> None:
        """A record of its own under the session's id."""
        replace(self._call, asked=asked, received=self._call.parts.auditor.clock.now()).ended(error)
