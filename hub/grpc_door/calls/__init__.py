"""What surrounds each gRPC call: the gate, counts, and the words for policies."""
