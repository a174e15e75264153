"""What a model adds over the rules at equal candidates, with recorded answers in the place of a model.

    python benchmarks/recorded_answers.py examples/softmax.cu --candidates 80 --rounds 3 --out .optiml/answers \\
        --record benchmarks/results/model_path.json

For each kernel the installed command runs twice with the same number of candidates and the same seed: with the rules alone, and
with rules and model through the batch door. The answers of `benchmarks/answers/<kernel>/round<N>.jsonl` (lines of a batch's output
file) are at hand from the start, each given when its question comes up. A recorded answer belongs to a question by its `custom_id`,
else by what the question is about (the edits from the original to the program) and its place among the questions on it: where
that brings back answers that had found no question, the run is made anew with them. One that finds none is named. Where the
answers came from stands in `benchmarks/answers/provenance.json`, and in the record.

Questions that nobody answered are left in `<out>/<kernel>/seed<N>/questions.md`, in words, for whoever writes the next round. An
answer is written as a text and packed into a line:

    python benchmarks/recorded_answers.py --pack draft.txt --kernel softmax --round 1 --index .optiml/answers/softmax/seed0/batch

where each answer in `draft.txt` follows a line `=== <custom_id>`.

With `--gpus N` kernels run side by side, each on a GPU of its own. With `--profiles none,raw,diagnosis` the run with a model is made
once for each, with the same answers: what can differ is what is asked, how long the prompts are and what they hold.

Exit code 0 when every run ended with a result, 1 when one failed, 2 on wrong use.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import queue
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.answer_set import (
    MODEL,
    lines_of,
    pack,
    prompts,
    provenance,
    questions,
    recording,
    rediscovered,
    verdicts,
    with_answers,
    write_responses,
)
from benchmarks.examples import ROOT, head, one_gpu, optiml, shown, speedup, trimmed
from engine.llm.prompts import PROFILES

SCHEMA = "optiml.model_path/2"
ANSWERS = ROOT / "benchmarks" / "answers"
WAITING = 4  # the command's exit code when questions wait in the batch folder
GOAL = 1.3  # what the model path is to reach over the rules, geometric mean
_TIMEOUT_S = 900.0
_ANEW = 3  # runs that may be made again because more answers found a question


def main(given: Sequence[str] | None = None) -> int:
    """Run the comparison, or pack answers; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Compare the model path, with recorded answers, with the rules alone.")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="kernels (default: those with answers)")
    parser.add_argument("--answers", type=Path, default=ANSWERS, help="the recorded set")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of answers to use (default: 3)")
    parser.add_argument("--candidates", type=int, default=80, help="of each of the two runs (default: 80)")
    parser.add_argument("--seeds", type=int, default=1, help="runs with seeds 0, 1, … (default: 1)")
    parser.add_argument("--device", choices=("auto", "gpu", "cpu"), default="auto")
    parser.add_argument("--gpus", type=int, default=0, metavar="N", help="kernels side by side on N GPUs")
    parser.add_argument("--profiles", default="diagnosis", help=f"of {','.join(PROFILES)} (default: diagnosis)")
    parser.add_argument("--out", type=Path, default=ROOT / ".optiml" / "answers", help="where each run's folder goes")
    parser.add_argument("--record", type=Path, help="the JSON record to write, anew after each kernel")
    parser.add_argument(
        "--resume", action="store_true", help="keep the record's other kernels; they need the same options"
    )
    parser.add_argument("--questions-only", action="store_true", help="no run with the rules alone")
    parser.add_argument("--pack", type=Path, metavar="DRAFT", help="turn a draft into lines of recorded answers")
    parser.add_argument("--kernel", help="with --pack: the kernel's name in the recorded set")
    parser.add_argument("--round", type=int, help="with --pack: the round")
    parser.add_argument("--index", type=Path, help="with --pack: the batch folder with the questions")
    options = parser.parse_args(given)
    if options.pack is not None:
        if options.kernel is None or options.round is None or options.index is None:
            parser.error("--pack needs --kernel, --round and --index")
        return pack(options.pack, options.answers, options.kernel, options.round, options.index)
    if options.record is None and not options.questions_only:
        parser.error("name the record to write with --record, or ask for --questions-only")
    options.profiles = options.profiles.split(",")
    if not set(options.profiles) <= set(PROFILES) or len(set(options.profiles)) < len(options.profiles):
        parser.error(f"--profiles takes some of {','.join(PROFILES)}, each once")
    files = [f.resolve() for f in options.files] or with_answers(options.answers)
    missing = [str(f) for f in files if not f.is_file()]
    if missing or not files:
        parser.error(f"no such file: {', '.join(missing)}" if missing else "there are no answers: name the kernels")
    stated = provenance(options.answers)
    for file in files:
        recording(
            options.answers / file.stem, options.rounds
        )  # a line that is none must not cost the others their runs
    kept = resumed(options) if options.resume else {}
    begin = datetime.datetime.now(datetime.UTC)
    runs: dict[tuple[str, int], dict[str, Any]] = {}
    record: dict[str, Any] = {}
    for file, seed, run in everything(files, options):
        runs[file.stem, seed] = run
        kernels = [kernel for name, kernel in kept.items() if name not in {f.stem for f in files}]
        for name in dict.fromkeys(f.stem for f in files):
            done = [runs[name, n] for n in range(options.seeds) if (name, n) in runs]
            if done:
                kernels.append({"kernel": name, "runs": done, **across_seeds(done)})
        record = {
            **head(SCHEMA, __file__, given, begin),
            "answers": stated,
            "candidates": options.candidates,
            "rounds": options.rounds,
            "profiles": options.profiles,
            "method": METHOD,
            "complete": len(runs) == len(files) * options.seeds,
            "summary": summary(kernels),
            "kernels": kernels,
        }
        if options.record is not None:
            write(options.record, record)
    print(table(record))
    return 1 if any(run["error"] for run in runs.values()) else 0


METHOD = (
    "Each ratio is the original's time over the suggestion's, confirmed on fresh inputs in a second process; a run without a "
    "suggestion counts as 1. Gain: the model path's ratio over the rules', with the first of the profiles. Its interval combines the "
    "two intervals as independent errors of the logarithms. With several seeds: geometric means over them. A candidate is what was "
    "evaluated, in both runs alike: a duplicate counts, an answer that gives no edit does not. Answers are at hand from the start, "
    "so the model path has no waiting in it, and time is not compared. An answer is the same under each profile: what differs is "
    "the questions that are asked, and their prompts. Tokens are estimated from above, from those prompts that had no answer: they "
    "waited for their diagnosis."
)


def resumed(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The kernels of the record that is there. Exits where there is none, or one of another kind."""
    try:
        record = json.loads(options.record.read_text(encoding="utf-8"))
    except (AttributeError, OSError, ValueError) as error:
        sys.exit(f"--resume: there is no record to go on with: {error}")
    asked = {"schema": SCHEMA, "candidates": options.candidates, "rounds": options.rounds, "profiles": options.profiles}
    for key, value in asked.items():
        if not isinstance(record, dict) or record.get(key) != value:
            sys.exit(f"--resume: {options.record} has another {key}; nothing was overwritten")
    return {kernel["kernel"]: kernel for kernel in record["kernels"]}


def write(path: Path, record: Mapping[str, Any]) -> None:
    """The record, whole at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    part.replace(path)


# ---- runs


def everything(
    files: Sequence[Path], options: argparse.Namespace,
    compare: Callable[..., dict[str, Any]] | None = None,
) -> Iterator[tuple[Path, int, dict[str, Any]]]:  # fmt: skip
    """Every kernel and seed with its comparison, as they end. With `options.gpus` each has a GPU of its own meanwhile."""
    free: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
    for environment in devices(options.gpus):
        free.put(environment)

    def one(file: Path, seed: int) -> dict[str, Any]:
        environment = free.get()
        try:
            print(f"{file.name}, seed {seed} …", file=sys.stderr, flush=True)
            return (compare or compared)(file, seed, options, environment)
        except (Exception, SystemExit) as error:  # what is wrong with one kernel must not lose the others
            return {"seed": seed, "error": f"{type(error).__name__}: {error}", "rules": None, "profiles": {}}
        finally:
            free.put(environment)

    with ThreadPoolExecutor(max(1, options.gpus)) as pool:
        asked = {pool.submit(one, file, seed): (file, seed) for file in files for seed in range(options.seeds)}
        for future in as_completed(asked):
            yield *asked[future], future.result()


def devices(gpus: int) -> list[dict[str, str]]:
    """What the environments of runs side by side have of their own: one GPU each, of those that are visible here."""
    if gpus < 1:
        return [{}]
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    names = visible or [str(i) for i in range(gpus)]
    if len(names) < gpus:
        sys.exit(f"--gpus {gpus}: CUDA_VISIBLE_DEVICES names {len(names)}")
    return [one_gpu(name) for name in names[:gpus]]


def compared(file: Path, seed: int, options: argparse.Namespace, environment: Mapping[str, str]) -> dict[str, Any]:
    """The run with the rules and one with a model for each profile. `error` is None, or what the first that failed ended with."""
    folder = options.out.resolve() / file.stem / f"seed{seed}"
    common = ["--budget", str(options.candidates), "--seed", str(seed), "--device", options.device]
    if options.gpus > 1:
        common += ["--jobs", str(max(1, len(os.sched_getaffinity(0)) // options.gpus))]
    found: dict[str, Any] = {"seed": seed, "error": None, "rules": None, "profiles": {}}
    if not options.questions_only:
        found["rules"] = run(file, folder / "rules", common, environment)
        found["error"] = found["rules"]["error"]
    for profile in options.profiles:
        told = with_model(file, folder, profile, common, options, environment)
        found["error"] = found["error"] or told["model"]["error"]
        if found["rules"] is not None and not found["rules"]["error"] and not told["model"]["error"]:
            told |= gain(found["rules"], told["model"])
        found["profiles"][profile] = told
    return found


def with_model(
    file: Path, folder: Path, profile: str, common: Sequence[str], options: argparse.Namespace, environment: Mapping[str, str]
) -> dict[str, Any]:  # fmt: skip
    """The run with a model, what became of each recorded answer, and what the prompts were."""
    recorded = recording(options.answers / file.stem, options.rounds)
    kind = "" if profile == options.profiles[0] else f"-{profile}"
    batch, out = folder / f"batch{kind}", folder / f"model{kind}"
    batch.mkdir(parents=True, exist_ok=True)
    arguments = [
        *common, "--proposers", "rules,llm", "--llm", f"batch:{batch}", "--llm-model", MODEL, "--prompt-profile", profile,
    ]  # fmt: skip
    given = {line["custom_id"]: line for line in reversed(recorded)}
    renamed: dict[str, str] = {}
    for number in range(_ANEW + 1):
        for name in ("requests.jsonl", "index.jsonl"):
            (batch / name).unlink(missing_ok=True)
        write_responses(batch / "responses.jsonl", given)
        found = run(file, out, arguments, environment)
        exchanges = lines_of(out / "exchanges.jsonl")
        more = rediscovered(recorded, renamed, lines_of(batch / "index.jsonl"), exchanges)
        if found["error"] is not None or not more or number == _ANEW:
            break
        for question, line in more.items():
            renamed[line["custom_id"]] = question
            given[question] = line
    told = {
        "model": found,
        "runs": number + 1,
        "answers": verdicts(recorded, renamed, exchanges),
        "prompts": prompts(exchanges),
        "open": len(lines_of(batch / "requests.jsonl")),
    }
    (folder / f"questions{kind}.md").write_text(questions(batch), encoding="utf-8")
    return told


def run(file: Path, out: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """One run of the installed command. `error` is None, or the sentence it ended with."""
    command = [optiml(), "optimize", str(file), "--out", str(out), "--format", "json", *arguments]
    found: dict[str, Any] = {"error": None, "result": None}
    begin = time.monotonic()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, env={**os.environ, **environment}
        )
        found["exit_code"] = done.returncode
        if done.returncode in (0, WAITING) and done.stdout.strip():
            found["result"] = trimmed(json.loads(done.stdout))
            found["result"]["provenance"]["command"] = shown(found["result"]["provenance"]["command"])
            found["error"] = disturbed(found["result"])
        else:
            found["error"] = done.stderr.strip()[-2000:] or f"exit code {done.returncode} without a word"
    except subprocess.TimeoutExpired:
        found["error"] = "did not end in time"
    found["wall_s"] = round(time.monotonic() - begin, 3)
    return found


def disturbed(result: Mapping[str, Any]) -> str | None:
    """Why nothing follows from a run that suggests nothing: what it would have suggested was refused for a disturbance."""
    if result["best"] is not None:
        return None
    failures = [one["evaluation"]["failure"] for one in result["refused"] if one["evaluation"]["outcome"] == "unstable"]
    return f"was disturbed: {failures[0]['reason']}" if failures else None


# ---- figures


def figures(one: Mapping[str, Any]) -> tuple[float, float, float]:
    """Ratio and interval of a run's suggestion; 1 where there is none."""
    measurement = speedup(dict(one))
    if measurement is None:
        return 1.0, 1.0, 1.0
    return measurement["ratio"], measurement["low"], measurement["high"]


def gain(rules: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """The model path's ratio over the rules', with its interval; and who made the steps of the suggestion."""
    (a, a_low, a_high), (b, b_low, b_high) = figures(model), figures(rules)
    down = math.hypot(math.log(a / a_low), math.log(b_high / b))
    up = math.hypot(math.log(a_high / a), math.log(b / b_low))
    ratio = a / b
    steps = model["result"]["trajectory"]
    best = model["result"]["best"]
    return {
        "rules_ratio": b,
        "model_ratio": a,
        "gain": ratio,
        "low": ratio * math.exp(-down),
        "high": ratio * math.exp(up),
        "candidates": {k: run["result"]["counts"]["candidates"] for k, run in (("rules", rules), ("model", model))},
        "steps": [f"{step['proposer']}: {step['summary']}" for step in steps],
        "guardrails_failed": [
            g["name"] for g in (best["evaluation"]["guardrails"] if best else []) if g["verdict"] == "failed"
        ],
    }


def across_seeds(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The geometric mean of a kernel's gains over seeds, the interval's errors as independent ones: of the first profile, and
    under `profiles` of each."""
    by = {name: _mean([run["profiles"][name] for run in runs if name in run["profiles"]]) for name in _profiles(runs)}
    return {**next(iter(by.values()), _mean([])), "profiles": by}


def _profiles(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run["profiles"]))


def _mean(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    good = [one for one in found if one.get("gain")]
    if not good:
        return {"gain": None, "low": None, "high": None}
    mean = sum(math.log(one["gain"]) for one in good) / len(good)
    down = math.sqrt(sum((math.log(one["gain"] / one["low"])) ** 2 for one in good)) / len(good)
    up = math.sqrt(sum((math.log(one["high"] / one["gain"])) ** 2 for one in good)) / len(good)
    return {"gain": math.exp(mean), "low": math.exp(mean - down), "high": math.exp(mean + up)}


def summary(kernels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The geometric mean over kernels and whether it reaches the goal; how many answers found their question; each profile."""
    mean = _geometric([kernel["gain"] for kernel in kernels])
    runs = [run for kernel in kernels for run in kernel["runs"]]
    firsts = [next(iter(run["profiles"].values())) for run in runs if run["profiles"]]
    return {
        "kernels": sum(bool(kernel["gain"]) for kernel in kernels),
        "geometric_mean": mean,
        "goal": GOAL,
        "reached": mean is not None and mean >= GOAL,
        "failed": sum(bool(run["error"]) for run in runs),
        "answers_given": sum(one["answers"]["given"] for one in firsts),
        "answers_not_asked_for": sum(len(one["answers"]["not_asked_for"]) for one in firsts),
        "guardrails_failed": sum(len(one.get("guardrails_failed", ())) for one in firsts),
        "profiles": {name: _of_profile(name, kernels, runs) for name in _profiles(runs)},
    }


def _of_profile(name: str, kernels: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One profile over all kernels; tokens of those questions that were asked under every profile."""
    tokens = []
    for run in runs:
        every = [one["prompts"]["tokens"] for one in run["profiles"].values()]
        tokens += [count for label, count in run["profiles"].get(name, {"prompts": {"tokens": {}}})["prompts"]["tokens"].items()
                   if all(label in others for others in every)]  # fmt: skip
    prompts = [run["profiles"][name]["prompts"] for run in runs if name in run["profiles"]]
    return {
        "geometric_mean": _geometric([k["profiles"][name]["gain"] for k in kernels if name in k["profiles"]]),
        "prompts": sum(len(p["tokens"]) for p in prompts),
        "with_diagnosis": sum(p["with_diagnosis"] for p in prompts),
        "with_counters": sum(p["with_counters"] for p in prompts),
        "common_prompts": len(tokens),
        "tokens_of_a_common_prompt": sum(tokens) / len(tokens) if tokens else None,
    }


def _geometric(gains: Sequence[float | None]) -> float | None:
    logs = [math.log(gain) for gain in gains if gain]
    return math.exp(sum(logs) / len(logs)) if logs else None


def table(record: Mapping[str, Any]) -> str:
    """The record as Markdown tables."""
    lines = [
        "| kernel | profile | rules | with the model | gain | 95 % interval | answers given | open questions |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    lost = []
    for kernel in record["kernels"]:
        for run in kernel["runs"]:
            if not run["profiles"]:
                lines.append(f"| {kernel['kernel']} | | {_last(run['error'])} | | | | | |")
            for name, one in run["profiles"].items():
                answers = f"{one['answers']['given']} of {one['answers']['recorded']} | {one['open']}"
                if one.get("gain") is None:
                    reason = _last(run["error"]) if run["error"] else "questions only"
                    lines.append(f"| {kernel['kernel']} | {name} | {reason} | | | | {answers} |")
                    continue
                lines.append(
                    f"| {kernel['kernel']} | {name} | {one['rules_ratio']:.2f} | {one['model_ratio']:.2f} | {one['gain']:.2f} "
                    f"| {one['low']:.2f} to {one['high']:.2f} | {answers} |"
                )
            for one in list(run["profiles"].values())[:1]:
                lost += [
                    f"Not asked for: {kernel['kernel']}, round {line['round']}, {line['custom_id']} ({line['about']})"
                    for line in one["answers"]["not_asked_for"]
                ]
    lines += ["", "| profile | geometric mean | prompts | with diagnosis | with counters | tokens of a common prompt |",
              "|---|---:|---:|---:|---:|---:|"]  # fmt: skip
    for name, one in record["summary"]["profiles"].items():
        mean, tokens = (
            f"{v:.{d}f}" if v else "" for v, d in ((one["geometric_mean"], 2), (one["tokens_of_a_common_prompt"], 0))
        )
        lines.append(
            f"| {name} | {mean} | {one['prompts']} | {one['with_diagnosis']} | {one['with_counters']} | {tokens} |"
        )
    total = record["summary"]
    if total["geometric_mean"]:
        lines += ["", f"Geometric mean {total['geometric_mean']:.2f} over {total['kernels']} kernels (goal {GOAL})."]
    return "\n".join(lines + lost)


def _last(error: str) -> str:
    return (error.strip().splitlines() or [""])[-1][:80]


if __name__ == "__main__":
    sys.exit(main())
