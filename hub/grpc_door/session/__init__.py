"""The Session service: streams, acknowledgements, reports, trust bundles. `calls` and `context` also serve Registration."""
