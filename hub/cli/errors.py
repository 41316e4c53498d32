"""What hubctl says when it cannot do what was asked: one sentence, what to do, and an exit code."""


class CliError(Exception):
    """Rendered as `error: <message>`; `exit_code` 1: the hub or the world says no, 2: the command line is wrong."""

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code


class RefusedError(CliError):
    """The hub answered with a Status; `reason` is its Kubernetes reason."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
