"""Logs a repeated failure once until its text changes."""

from typing import Any


class LogOnce:
    """Logs a failure that is retried, once until its text changes or `reset` is called after a success."""

    def __init__(self, log: Any) -> None:
        """`log`: the structlog logger of the module that fails."""
        self._log = log
        self.text = ""
        """Text of the current failure; "" after `reset`."""

    def warning(self, event: str, error: object, **fields: Any) -> bool:
        """Log `event` with the field `error` (the text of `error`), unless the last failure had the same text.

        Return whether it was logged.
        """
        return self._logged(self._log.warning, event, error, fields)

    def error(self, event: str, error: object, **fields: Any) -> bool:
        """As `warning`, at the level `error`."""
        return self._logged(self._log.error, event, error, fields)

    def reset(self) -> bool:
        """Record a success: the next failure is logged whatever its text. Return whether a failure was before."""
        failed, self.text = bool(self.text), ""
        return failed

    def _logged(self, level: Any, event: str, error: object, fields: dict[str, Any]) -> bool:
        before, self.text = self.text, str(error) or type(error).__name__
        if self.text == before:
            return False
        level(event, error=self.text, **fields)
        return True
