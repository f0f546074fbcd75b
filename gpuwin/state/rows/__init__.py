"""Raw rows and sketches of holistic aggregates."""
