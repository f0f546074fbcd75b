"""Drivers: one for windows on a grid, one for sessions. They tell what a batch emits and evicts, of any store."""
