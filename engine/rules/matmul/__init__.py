"""Matrix products through tiles in shared memory."""
