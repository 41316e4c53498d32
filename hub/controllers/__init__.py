"""What the hub does by itself: one reconciler per file, each owns one condition or one object.

`feed` turns the change log into keys, `batch` takes many keys through one transaction; neither knows a reconciler.
"""

ACTOR = "system:muster:controller"
"""Who the change log names for what controllers write; each appends its own name."""
