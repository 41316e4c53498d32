"""Handover from one session to the next, and its outcome."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from machinery.errors import MusterError
from spoke.ports import HubLostError
from spoke.session.active_session import ActiveSession


class SucceededError(Exception):
    """Not a failure: another link has taken over."""

    def __init__(self, link: ActiveSession) -> None:
        super().__init__("a successor took over")
        self.link = link


@dataclass(frozen=True, slots=True)
class Handover:
    """How the successor's link is opened."""

    begin: Callable[[], Awaitable[ActiveSession]]
    once: bool = False
    undo: Callable[[HubLostError], Awaitable[None]] | None = None
    """Reverts `begin` when the link does not take over, whether it was opened or not."""


async def outcome(ended: BaseExceptionGroup[BaseException]) -> ActiveSession:
    """Return the link that took over; else raise the error that ended the session."""
    leaves = list(_leaves(ended))
    task = asyncio.current_task()
    for leaf in leaves:
        if isinstance(leaf, SucceededError):
            if task is not None and task.cancelling():
                await leaf.link.close()
                raise asyncio.CancelledError
            return leaf.link
    for leaf in leaves:
        if isinstance(leaf, MusterError):
            raise leaf
    raise ended


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterable[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
