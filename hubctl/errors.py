"""Errors of hubctl: one sentence with the remedy, and an exit code. Also suggests words that are similar to a mistyped word."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

DONE, FAILED, MISUSED, NOT_FOUND, TIMED_OUT, UNREACHABLE, NOT_WELL, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 130
"""Exit codes: success; refused or failed; wrong usage or an unusable kubeconfig; an object does not exist; timeout; the hub is
unreachable; `hubctl diagnose` found a problem; interrupted.
"""


class CommandError(Exception):
    """A command has failed. `sentence`: the message for the user. `code`: exit code; None: NOT_FOUND or FAILED by `reason`."""

    def __init__(self, sentence: str, *, reason: str = "", code: int | None = None) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.reason = reason
        """The reason in the hub's Status; empty if there is none."""
        self.code = (NOT_FOUND if reason == "NotFound" else FAILED) if code is None else code


class UsageError(CommandError):
    """Wrong usage, or an unusable kubeconfig."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, code=MISUSED)


class ConnectionLostError(CommandError):
    """The hub is unreachable, or the connection broke. A watch retries."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, code=UNREACHABLE)


class RejectedCredentialError(CommandError):
    """The hub has rejected the credential; another credential may work. `had_no_effect`: the request had no effect."""

    def __init__(self, sentence: str, *, reason: str = "", had_no_effect: bool = False) -> None:
        super().__init__(sentence, reason=reason)
        self.had_no_effect = had_no_effect


def closest(word: str, known: Iterable[str]) -> str:
    """Return `: did you mean "x"?`; empty: no known word is similar."""
    from difflib import get_close_matches  # noqa: PLC0415 - only after a mistake

    found = get_close_matches(word.lower(), list(known), n=1)
    return f': did you mean "{found[0]}"?' if found else ""


@contextmanager
def usage_errors() -> Iterator[None]:
    """Context manager that converts an InvalidError in its block to UsageError."""
    from machinery.errors import InvalidError  # noqa: PLC0415 - not for `hubctl --help`

    try:
        yield
    except InvalidError as error:
        raise UsageError(error.message) from None
