"""What this door counts of its calls."""

from dataclasses import dataclass, field
from datetime import timedelta

from machinery.errors import MusterError
from machinery.observability.metrics import Distribution, Tally

OK, DEFECT, CUT_OFF = "OK", "InternalError", "Cancelled"


@dataclass(frozen=True, slots=True)
class CallCounts:
    """Since the start. Methods are the services' own, reasons those of `machinery.errors`: both are few."""

    handled: Tally = field(default_factory=Tally)
    """By method and outcome: the reason of an error, OK, or that the call was cut off."""
    seconds: dict[str, Distribution] = field(default_factory=dict)
    """Of calls that were answered, by method; streams are not among them."""

    def ended(self, method: str, error: BaseException | None) -> None:
        self.handled[method, _outcome(error)] += 1

    def took(self, method: str, time: timedelta) -> None:
        """A call was answered after that time."""
        if method not in self.seconds:
            self.seconds[method] = Distribution()
        self.seconds[method].observe(time.total_seconds())


def _outcome(error: BaseException | None) -> str:
    if error is None:
        return OK
    if isinstance(error, MusterError):
        return error.reason
    return DEFECT if isinstance(error, Exception) else CUT_OFF
