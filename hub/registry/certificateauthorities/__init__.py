"""The hub's CAs: orders of operators, steps of the leader, and the CAs that agents trust."""
