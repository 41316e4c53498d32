"""Not a controller: how often those look who wait for what nobody tells of."""

from datetime import timedelta

SHARE = 10
"""So much of the time that something has lasted may pass before it is seen that it is over."""
SELDOM = timedelta(minutes=1)


def pause(lasting: timedelta, shortest: timedelta) -> timedelta:
    """Until the next look at what has lasted for so long: from `shortest` on, and never more than SELDOM.

    What ends soon is seen soon. What may last for ever, such as a finalizer of somebody who will never answer, takes next to
    nothing of the database, however many objects it holds.
    """
    return min(max(lasting / SHARE, shortest), SELDOM)
