"""The kernels for CUDA, in Numba; sorts and scans are CuPy's or CCCL's. Nothing here needs a GPU to be imported."""
