"""The hub's controllers. Most of them own one condition or one kind of object.

A controller's module has a function `register`, which adds the controller to the `builder`. `manager` lists these functions
(except that of `rotation`) and runs the controllers of a leader term.
"""

ACTOR = "system:muster:controller"
"""Prefix of the actor of a controller's writes in the change log; the controller's name follows."""
