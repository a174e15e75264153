"""The two-stage tuner: a template of a kernel, and a constrained search over its points. Documented in docs/tune.md."""
