"""Engines on CUDA: rows and state in device memory, the choice of the device, and a check of its results."""
