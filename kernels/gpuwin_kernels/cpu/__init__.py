"""Kernels for the CPU, compiled by Numba; they release the interpreter lock."""

from gpuwin_kernels.cpu import code_cache

code_cache.find_place()
