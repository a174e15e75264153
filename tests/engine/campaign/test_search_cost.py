"""With a budget for each kernel the searches that took longest before come first, so that none of them runs alone at the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.campaign.campaign import CampaignRequest, run_campaign
from engine.campaign.kernel_search import KernelEnd, KernelTask
from engine.campaign.queue import Queued
from engine.campaign.search_cost import expected_s
from engine.campaign.survey import Survey, SurveyedKernel
from engine.search.progress import Budget


class Order:
    """One slot that notes which kernels it was given."""

    slots = 1

    def __init__(self) -> None:
        self.given: list[str] = []

    def begin(self, task: KernelTask) -> None:
        self.given.append(task.kernel)
        self.rank = task.rank

    def ended(self) -> list[tuple[int, KernelEnd]]:
        return [(self.rank, KernelEnd("done", "said"))]


def searched_before(root: Path, **seconds: object) -> None:
    for kernel, elapsed_s in seconds.items():
        result = root / ".optiml" / f"k-{kernel}" / "result.json"
        result.parent.mkdir(parents=True)
        result.write_text(json.dumps({"elapsed_s": elapsed_s, "counts": {"candidates": 10}}))


def order(root: Path, each: Budget | None) -> list[str]:
    kernels = [
        SurveyedKernel("k.cu", name, 1, "declared", None, headroom)
        for name, headroom in zip("abc", (9.0, 5.0, 2.0), strict=True)
    ]
    there = Order()
    run_campaign(CampaignRequest(root, 600.0, each=each), there, Survey(tuple(kernels), False, True, "sm_90"))
    return there.given


def test_the_longest_searches_come_first_where_every_kernel_is_searched(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    searched_before(tmp_path, a=10.0, c=50.0)
    assert order(tmp_path, Budget(candidates=10)) == ["c", "b", "a"]  # b as long as the others on average
    assert order(tmp_path, None) == ["a", "b", "c"]  # a budget of time goes to what promises most


def test_without_an_earlier_search_the_order_is_that_of_the_promise(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    assert order(tmp_path, Budget(candidates=10)) == ["a", "b", "c"]


@pytest.mark.parametrize("elapsed_s", [0.0, "long", None, True, -1.0])
def test_a_result_that_makes_no_sense_counts_as_none(tmp_path: Path, elapsed_s: object) -> None:
    searched_before(tmp_path, a=elapsed_s)
    kernel = Queued(1, "k.cu", "a", None, None, None, "waiting")
    assert expected_s(tmp_path, [kernel]) == {}
