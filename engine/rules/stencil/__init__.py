"""Neighbours of an element through tiles in shared memory."""
