"""Gate, counters and request attributes of gRPC calls.

`grpc.aio` ends calls that it has received but not started with CANCELLED when the server stops. To avoid this, the hub first
closes the gate, so that new calls get UNAVAILABLE. The hub stops the server when no call has arrived for `QUIET`.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta

from machinery.apiserver.access import Attributes
from machinery.errors import MusterError, UnavailableError
from machinery.identity import ClusterName
from machinery.observability.metrics import Distribution, Tally
from machinery.runtime.clock import Clock

QUIET = timedelta(milliseconds=250)
STEP = 0.05
"""Seconds between two checks whether QUIET has passed."""
GATE_RETRY = timedelta(seconds=1)


class Gate:
    """Counts the calls in progress, except health checks. `moment`: time without a call after which the gate is quiet."""

    def __init__(self, clock: Clock, moment: timedelta = QUIET) -> None:
        self._clock = clock
        self._moment = moment.total_seconds()
        self._in_flight = 0
        self._last = self._last_arrival = clock.monotonic()
        self._closed = False

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def closed(self) -> bool:
        return self._closed

    def __enter__(self) -> None:
        """Counts a call until the end of the block. Raises UnavailableError if the gate is closed."""
        self._last_arrival = self._clock.monotonic()
        self.check()
        self._last, self._in_flight = self._last_arrival, self._in_flight + 1

    def __exit__(self, *_error: object) -> None:
        self._in_flight -= 1
        self._last = self._clock.monotonic()

    def check(self) -> None:
        """Raises UnavailableError if the gate is closed."""
        if self._closed:
            raise UnavailableError("this hub is shutting down: try again", retry_after=GATE_RETRY)

    def close(self) -> None:
        """Refuses calls from now on. Idempotent."""
        if not self._closed:
            self._closed = True
            self._last = self._last_arrival = self._clock.monotonic()

    async def still(self, within: timedelta) -> None:
        """Returns when no call has arrived for `moment`, or after `within`. Calls may still be in progress."""
        end = self._clock.monotonic() + within.total_seconds()
        while (rest := min(self._last_arrival + self._moment, end) - self._clock.monotonic()) > 0:
            await self._pass(rest)

    async def quiet(self) -> None:
        """Returns when no call is in progress and none has begun or ended for `moment`. Refused calls do not count."""
        while True:
            rest = self._moment - (self._clock.monotonic() - self._last)
            if self._in_flight == 0 and rest <= 0:
                return
            await self._pass(max(rest, 0.01))

    async def _pass(self, seconds: float) -> None:
        """Sleeps for at most STEP. Time in which the process was suspended does not count as quiet: no call could arrive."""
        step, began = min(seconds, STEP), self._clock.monotonic()
        await asyncio.sleep(step)
        now = self._clock.monotonic()
        late = now - began - step
        if late > STEP:
            self._last, self._last_arrival = min(self._last + late, now), min(self._last_arrival + late, now)


OK, DEFECT, CUT_OFF = "OK", "InternalError", "Cancelled"


@dataclass(frozen=True, slots=True)
class CallCounts:
    """Counts of calls since the start. Methods and reasons (`machinery.errors`) are few, so the number of series is bounded."""

    handled: Tally = field(default_factory=Tally)
    """Number of calls by method and outcome: the reason of the error, OK, or Cancelled."""
    seconds: dict[str, Distribution] = field(default_factory=dict)
    """Duration of successful unary calls, by method."""

    def ended(self, method: str, error: BaseException | None) -> None:
        outcome = DEFECT if isinstance(error, Exception) else CUT_OFF
        if error is None or isinstance(error, MusterError):
            outcome = OK if error is None else error.reason
        self.handled[method, outcome] += 1

    def observe(self, method: str, duration: timedelta) -> None:
        """Records the duration of a successful call."""
        self.seconds.setdefault(method, Distribution()).observe(duration.total_seconds())


REGISTRATION, CONNECT = "/muster.registration.v1.Registration", "/muster.session.v1.Session/Connect"
CERTIFICATES = "certificates.k8s.io"


class CallAttributes:
    """Request attributes of gRPC calls in the form of the HTTPS door, for audit policies and limits."""

    def __init__(self, group_suffix: str) -> None:
        self._clusters = f"cluster.{group_suffix}"
        self._addons = f"addon.{group_suffix}"

    def hub(self) -> Attributes:
        return Attributes("get", f"{REGISTRATION}/GetHub")

    def cluster(self, verb: str, method: str, name: str, subresource: str = "") -> Attributes:
        """Attributes of a call of the Registration service about a cluster. StandBy counts as a status report."""
        return Attributes(verb, f"{REGISTRATION}/{method}", self._clusters, "v1", "managedclusters", subresource, name=name)

    def request(self, verb: str, method: str, name: str = "") -> Attributes:
        """Attributes of a call of the Registration service about a certificate request."""
        return Attributes(verb, f"{REGISTRATION}/{method}", CERTIFICATES, "v1", "certificatesigningrequests", name=name)

    def addon_token(self, cluster: str, account: str) -> Attributes:
        path = f"{REGISTRATION}/IssueAddOnToken"
        return Attributes("create", path, "", "v1", "serviceaccounts", "token", cluster, account)

    def session(self, cluster: ClusterName | None) -> Attributes:
        return Attributes("connect", CONNECT, self._clusters, "v1", "managedclusters", "session", name=cluster or "")

    def beat(self, cluster: ClusterName) -> Attributes:
        lease = ("coordination.k8s.io", "v1", "leases")
        return Attributes("update", CONNECT, *lease, namespace=cluster, name="managed-cluster-lease")

    def status(self, cluster: ClusterName) -> Attributes:
        return Attributes("patch", CONNECT, self._clusters, "v1", "managedclusters", "status", name=cluster)

    def addon(self, cluster: ClusterName, name: str) -> Attributes:
        return Attributes("patch", CONNECT, self._addons, "v1beta1", "managedclusteraddons", "status", cluster, name)
