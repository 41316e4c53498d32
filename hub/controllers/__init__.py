"""The hub's controllers. Each owns one condition or one kind of object.

A controller's module has a function `register`, which adds it to the `builder`; `manager` lists these functions and runs the
controllers of a leader term. `batch` reconciles many names in one transaction.
"""

ACTOR = "system:muster:controller"
"""Prefix of the actor in the change log for writes of controllers; each appends its own name."""
