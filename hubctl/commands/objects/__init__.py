"""Commands about objects of any kind: get, describe, apply, delete, wait, label, history, events; version and the like."""
