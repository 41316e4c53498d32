"""Controllers of the hub itself: retention, lost replicas, Events of leader terms."""
