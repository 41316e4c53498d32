"""Logs a repeated failure once until its text changes."""

from typing import Any


class LogOnce:
    """Logs a failure that is retried, once until its text changes or `reset` is called after a success."""

    def __init__(self, log: Any) -> None:
        """`log`: the structlog logger of the module that fails."""
        self._log = log
        self.text = ""
        """Text of the current failure; "" after `reset`."""

    def warning(self, event: str, error: object, **fields: Any) -> None:
        """Log `event` with the field `error` (the text of `error`), unless the last failure had the same text."""
        self._tell(self._log.warning, event, error, fields)

    def error(self, event: str, error: object, **fields: Any) -> None:
        """As `warning`, at the level `error`."""
        self._tell(self._log.error, event, error, fields)

    def reset(self) -> bool:
        """Record a success: the next failure is logged whatever its text. Return whether a failure was before."""
        failed, self.text = bool(self.text), ""
        return failed

    def _tell(self, level: Any, event: str, error: object, fields: dict[str, Any]) -> None:
        text = str(error) or type(error).__name__
        if text != self.text:
            level(event, error=text, **fields)
        self.text = text
