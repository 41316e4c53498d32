"""The hub's controllers: one reconciler per module, each of which owns one condition or one kind of object.

`feed` turns the change log into keys, and `batch` reconciles many keys in one transaction; neither depends on a reconciler.
"""

ACTOR = "system:muster:controller"
"""Prefix of the actor in the change log for writes of controllers; each appends its own name."""
