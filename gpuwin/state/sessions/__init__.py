"""Open sessions: their tiers, or a table of few, and the trace of a batch."""
