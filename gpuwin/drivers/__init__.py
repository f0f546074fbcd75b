"""Drivers, one for windows on a grid and one for sessions: the windows that a batch emits and evicts, for any store."""
