"""Parts around each gRPC call: the gate, counters, and request attributes for policies."""
