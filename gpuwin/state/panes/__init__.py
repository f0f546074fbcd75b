"""Cells by pane and key: runs, their tiers, and the windows that are made of them."""
