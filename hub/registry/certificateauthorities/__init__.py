"""The hub's CAs: orders of operators, steps of the leader, the CAs that agents trust."""
