"""Commands about objects of any kind: get, describe, apply, delete, wait."""
