"""Reductions and prefix sums of a block."""
