"""A measured run of 500 candidates and its page, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.report_size import synthesise
from engine.report.page import render
from engine.report.run_folder import read_run


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder; not to be changed."""
    folder = tmp_path_factory.mktemp("measured")
    synthesise(folder)
    return folder


@pytest.fixture(scope="session")
def page(measured: Path) -> str:
    return render(read_run(measured))
