"""The hub's CAs: orders of operators, steps of the leader, what agents trust."""
