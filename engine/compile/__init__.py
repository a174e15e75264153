"""Device code to machine code: NVRTC in sandboxed worker processes, nvcc for what it refuses, a cache on disk."""
