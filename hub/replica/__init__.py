"""One replica of the hub: its keys, CAs, serving certificate, heartbeat and leader election."""
