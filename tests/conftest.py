"""Properties are tried on the same examples in each run, and no example is timed: a result follows from the code alone.

`pytest --hypothesis-profile=explore` draws other examples each time.
"""

from __future__ import annotations

import contextlib

with contextlib.suppress(ImportError):  # the tests of tests/gpu run without it
    from hypothesis import HealthCheck, settings

    settings.register_profile("steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("steady")
