"""The same on CUDA: rows and state in device memory, and when to trust them there."""
