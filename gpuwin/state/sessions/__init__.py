"""Open sessions: their tiers, or a table of few, and the sessions that rows leave."""
