"""State that leaves memory: snapshots, what is spilled, and what waits on disk until it is due."""
