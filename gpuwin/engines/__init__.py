"""What happens to a batch, and what it makes fire: one engine for each kind of window and of emission."""
