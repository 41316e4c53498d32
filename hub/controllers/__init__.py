"""The hub's controllers. Each owns one condition or one kind of object.

A controller's module has a function `register`, which adds it to the `builder`; `manager` lists these functions and runs the
controllers of a leader term.
"""

ACTOR = "system:muster:controller"
"""Prefix of the actor of a controller's writes in the change log; the controller's name follows."""
