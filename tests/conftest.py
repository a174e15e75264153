"""Properties are tried on the same examples in each run, and no example is timed: a result follows from the code alone.

`pytest --hypothesis-profile=explore` draws other examples each time.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator

import pytest

from tests.runtime import compile_in
from tests.support.shared_work import kept_folder, share

with contextlib.suppress(ImportError):  # the tests of tests/gpu run without it
    from hypothesis import HealthCheck, settings

    settings.register_profile("steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("steady")


def pytest_collection_finish() -> None:
    """What was imported and collected stays: looking through it for garbage was a sixth of the tests' time."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@pytest.fixture(scope="session", autouse=True)
def _shared_work() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        folder = kept_folder()
        compile_in(folder / "compiled")
        share(patch, folder / "shared-work")
        yield


@pytest.fixture(autouse=True)
def _at_the_root(pytestconfig: pytest.Config) -> Iterator[None]:
    """Each test begins in the repository's root, wherever another one in its process ended."""
    os.chdir(pytestconfig.rootpath)
    yield
    os.chdir(pytestconfig.rootpath)
