"""The Session service: streams, acknowledgements, reports, trust bundles, drains."""
