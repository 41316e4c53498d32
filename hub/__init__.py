"""The hub: certificates, the inventory in a SQL database, and two doors: gRPC for agents, HTTPS for operators."""
