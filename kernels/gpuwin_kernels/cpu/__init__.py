"""Kernels for the CPU, compiled by Numba; they release the interpreter lock."""
