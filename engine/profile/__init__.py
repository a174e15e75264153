"""What the profiler sees of a kernel, and the sentences that rules derive from it."""
