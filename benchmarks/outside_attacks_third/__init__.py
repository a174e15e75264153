"""Attacks and honest edits by somebody who saw ten kernels and no line of the verifier (docs/selftest.md)."""
