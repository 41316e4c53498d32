"""What hubctl says when something does not work: one sentence with what to do, and the exit code."""


class CommandError(Exception):
    """A command did not succeed; the sentence is for the person who typed it."""

    def __init__(self, sentence: str, *, reason: str = "", code: int = 1) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.reason = reason
        """The hub's reason, as in a Status; "" when the hub said nothing."""
        self.code = code
        """Exit code: 1 failure, 2 wrong usage."""


class ConnectionLostError(CommandError):
    """The hub cannot be reached, or went away: a watch tries again."""
