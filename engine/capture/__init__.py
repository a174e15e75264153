"""Recorded launches of the user's own program: which kernels it runs, how it calls them, and with which data."""
