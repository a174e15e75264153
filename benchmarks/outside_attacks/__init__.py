"""Attacks on the verifier by somebody who had not read it: generators of cases, not measured yet (docs/selftest.md)."""
