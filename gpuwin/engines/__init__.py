"""Engines, one for each kind of window and emission: functions from a state and a batch to the next state and its
results.
"""
