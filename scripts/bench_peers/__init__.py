"""The benchmark of Millpond and its peers: `make bench-peers` runs scripts/bench-peers.py."""
