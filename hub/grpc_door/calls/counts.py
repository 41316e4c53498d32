"""Counters of the gRPC door's calls."""

from dataclasses import dataclass, field
from datetime import timedelta

from machinery.errors import MusterError
from machinery.observability.metrics import Distribution, Tally

OK, DEFECT, CUT_OFF = "OK", "InternalError", "Cancelled"


@dataclass(frozen=True, slots=True)
class CallCounts:
    """Counts since the start. Methods and reasons (`machinery.errors`) are few, so the number of series is bounded."""

    handled: Tally = field(default_factory=Tally)
    """By method and outcome: the reason of the error, OK, or Cancelled."""
    seconds: dict[str, Distribution] = field(default_factory=dict)
    """Duration of successful unary calls, by method."""

    def ended(self, method: str, error: BaseException | None) -> None:
        self.handled[method, _outcome(error)] += 1

    def took(self, method: str, time: timedelta) -> None:
        """Records the duration of a successful call."""
        if method not in self.seconds:
            self.seconds[method] = Distribution()
        self.seconds[method].observe(time.total_seconds())


def _outcome(error: BaseException | None) -> str:
    if error is None:
        return OK
    if isinstance(error, MusterError):
        return error.reason
    return DEFECT if isinstance(error, Exception) else CUT_OFF
