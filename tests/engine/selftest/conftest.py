"""The machine of the CPU path."""

from tests.adversarial.conftest import cpu as cpu
