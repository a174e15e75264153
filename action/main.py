"""The command `optiml-action`: one mode of the Action, with inputs from the environment and answers in the runner's files."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, cast

if TYPE_CHECKING:
    from action.matrix import SearchJob
    from action.runner import Context
    from bot.bundle import Bundle
    from engine.settings.config import Config


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the mode that the environment names. Exit codes: 0, 1 something is missing or refused, 2 wrong use, 3 internal error."""
    from engine.commands.options import Parser

    parser = Parser(prog="optiml-action", description="One mode of the Action; its inputs are in the environment.")
    parser.add_argument(
        "--dry-run", action="store_true", help="print everything that would be sent, without sending it"
    )
    dry = parser.parse_args(arguments).dry_run
    from action.runner import read_context
    from engine.errors import OptimlError

    try:
        context = read_context()
        context = dataclasses.replace(context, dry_run=context.dry_run or dry)
        return {"gate": _gate, "optimize": _optimize, "publish": _publish}[context.mode](context)
    except OptimlError as error:
        _say(f"::error::{_escaped(str(error))}")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if os.environ.get("OPTIML_DEBUG"):
            raise
        _say(f"::error::{_escaped(f'internal error: {type(error).__name__}: {error}; please report it')}")
        return 3


def _gate(context: Context) -> int:
    from action.api import RestReader
    from action.gate import decide
    from action.matrix import matrix, search_jobs
    from engine.errors import OptimlError

    reader = RestReader(context.api_url, context.repository, context.token)
    try:
        decision = decide(context.event_name, context.event, reader)
    except Exception as error:
        from action.publish_job import report_failure

        unexpected = OptimlError(f"internal error: {type(error).__name__}", do="see the log of the job")
        report_failure(context, error if isinstance(error, OptimlError) else unexpected)
        raise
    request = decision.request
    jobs: tuple[SearchJob, ...] = ()
    _say(_escaped(decision.reason))
    if request:
        from action.publish_job import announce

        jobs = search_jobs(request, context.runners, context.jobs) if request.searches else ()
        request = dataclasses.replace(request, parts=",".join(job.part for job in jobs if len(jobs) > 1))

        request, hindered = announce(context, request, decision.config)
        if hindered:
            _say(f"::notice::{_escaped(hindered)}")
    context.answer(
        {
            "run": "true" if request and request.searches else "false",
            "publish": "true" if request and request.job else "false",
            "job": request.job if request else "",
            "reason": decision.reason,
            "request": request.to_json() if request else "",
            "matrix": matrix(jobs),
            "parts": request.parts if request else "",
            "pull-number": str(request.pull) if request else "",
            "base-sha": request.base if request else "",
            "head-sha": request.head if request else "",
            "fork": "true" if request and request.fork else "false",
            "earlier-run": str(request.earlier or "") if request else "",
        }
    )
    return 0


def _optimize(context: Context) -> int:
    from action.matrix import share_of
    from action.request import read_request

    request = read_request(context.request)
    share = share_of(context.part, request)
    # The rest takes most of a second to import.
    from action.search_job import JobInputs, run, settings_at
    from bot.bundle import FILE, write_reason
    from bot.clone import Repository
    from bot.escape import without_folders
    from engine.commands.optimize import parse_budget
    from engine.errors import OptimlError
    from engine.settings.folders import trust

    if context.budget and not request.budget_s:
        request = dataclasses.replace(request, budget_s=parse_budget(context.budget).seconds or 0.0)
    device = cast(Literal["auto", "gpu", "cpu"], context.device)

    def say(text: str) -> None:
        _say(_escaped(text))

    if request.command == "baseline":
        from action.baseline_job import record

        added = record(request, context.workspace, context.baseline, device=device, say=say)
        context.answer({"looked-at": str(added)})
        _say(f"kernels added to the baseline: {added}")
        return 0
    inputs = JobInputs(device, context.baseline, context.earlier, share, context.cluster)
    try:
        if inputs.cluster:
            from engine.cluster.scheduler import parse_address

            parse_address(inputs.cluster, "input 'cluster'")
        if request.command == "all":
            from action.campaign_job import run_all

            bundle = run_all(request, context.workspace, (context.bundle, context.earlier), inputs, say)
        else:
            with trust("fork" if request.fork else "pull"):
                bundle = run(request, context.workspace, context.bundle, inputs, say)
    except OptimlError as error:
        if not (context.bundle / FILE).exists():
            write_reason(without_folders(str(error)), context.bundle)
        raise
    improved, slower = _counted(bundle, settings_at(Repository(context.workspace), request.base))
    context.answer(
        {
            "improved": str(improved),
            "regressed": str(slower),
            "looked-at": str(len(bundle.kernels)),
            "report-path": str(context.bundle),
        }
    )
    _say(f"kernels analysed: {len(bundle.kernels)}; could be faster: {improved}; slower than the base: {slower}")
    return 0


def _counted(bundle: Bundle, config: Config) -> tuple[int, int]:
    """How many kernels a review will say could be faster, and how many became slower: by its own criteria."""
    from bot.review import Settings, make_review

    settings = Settings(
        least_speedup=config.thresholds.speedup, regression=config.thresholds.regression, post_predicted=config.post.predicted
    )  # fmt: skip
    review = make_review(bundle, (), settings)
    return len(review.findings), len(review.regressions)


def _publish(context: Context) -> int:
    from action.publish_job import publish
    from action.request import read_request

    return publish(context, read_request(context.request))


def _escaped(text: str) -> str:
    """Text as a workflow command takes it: no line of a stranger's can begin a command of its own."""
    flat = "".join(c if c.isprintable() else " " for c in text)
    return flat.replace("%", "%25").replace("::", ":\u200b:")[:2000]


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
