"""What hubctl says when something does not work: one sentence with what to do, and the exit code."""

DONE, FAILED, MISUSED, NOT_FOUND, TIMED_OUT, UNREACHABLE, NOT_WELL, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 130
"""Exit codes. Done; refused or failed; wrong usage, a kubeconfig that cannot be used included; an object is not there; what was
waited for did not come in time; the hub cannot be reached or does not answer; what was looked at is not well; interrupted."""


class CommandError(Exception):
    """A command did not succeed; the sentence is for the person who typed it."""

    def __init__(self, sentence: str, *, reason: str = "", code: int | None = None) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.reason = reason
        """The hub's reason, as in a Status; "" when the hub said nothing."""
        self.code = (NOT_FOUND if reason == "NotFound" else FAILED) if code is None else code
        """The exit code."""


class ConnectionLostError(CommandError):
    """The hub cannot be reached, or went away: a watch tries again."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, code=UNREACHABLE)


class RefusedCredentialError(CommandError):
    """The hub does not know who asks: another credential may do. Nothing was done, if `asked_in_vain`."""

    def __init__(self, sentence: str, *, reason: str = "", asked_in_vain: bool = False) -> None:
        super().__init__(sentence, reason=reason)
        self.asked_in_vain = asked_in_vain
