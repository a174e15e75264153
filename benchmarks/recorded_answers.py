"""What a model adds over the rules at equal candidates, with recorded answers in the place of a model.

    python benchmarks/recorded_answers.py examples/softmax.cu --candidates 80 --rounds 3 --out .optiml/answers \\
        --record benchmarks/results/model_path.json

For each kernel the installed command runs twice with the same number of candidates and the same seed: with the rules alone, and
with rules and model through the batch door. The second run goes in passes: the search stops, the questions that it has by then are
answered from `benchmarks/answers/<kernel>/round<N>.jsonl` (lines of a batch's output file), and `--resume` goes on. A recorded
answer belongs to a question by its `custom_id`, else by what the question is about (the edits from the original to the program) and
its place among the questions on it; one that finds no question is named. Where the answers came from stands in
`benchmarks/answers/provenance.json`, and in the record.

Questions that nobody answered are left in `<out>/<kernel>/questions.md`, in words, for whoever writes the next round. An answer
is written as a text and packed into a line:

    python benchmarks/recorded_answers.py --pack draft.txt --kernel softmax --round 1 --index .optiml/answers/softmax/seed0/batch

where each answer in `draft.txt` follows a line `=== <custom_id>`.

Exit code 0 when every run ended with a result, 1 when one failed, 2 on wrong use.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.examples import ROOT, head, optiml, shown, speedup, trimmed
from engine.llm.batch import custom_id

SCHEMA = "optiml.model_path/1"
ANSWERS = ROOT / "benchmarks" / "answers"
MODEL = "recorded"
WAITING = 4  # the command's exit code when questions wait in the batch folder
GOAL = 1.3  # what the model path is to reach over the rules, geometric mean
_TIMEOUT_S = 900.0


def main(given: Sequence[str] | None = None) -> int:
    """Run the comparison, or pack answers; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Compare the model path, with recorded answers, with the rules alone.")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="kernels (default: those with answers)")
    parser.add_argument("--answers", type=Path, default=ANSWERS, help="the recorded set")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of answers to use (default: 3)")
    parser.add_argument("--candidates", type=int, default=80, help="of each of the two runs (default: 80)")
    parser.add_argument("--seeds", type=int, default=1, help="runs with seeds 0, 1, … (default: 1)")
    parser.add_argument("--device", choices=("auto", "gpu", "cpu"), default="auto")
    parser.add_argument("--prompt-profile", choices=("none", "raw", "diagnosis"), default="diagnosis")
    parser.add_argument("--out", type=Path, default=ROOT / ".optiml" / "answers", help="where each run's folder goes")
    parser.add_argument("--record", type=Path, help="the JSON record to write")
    parser.add_argument("--questions-only", action="store_true", help="no run with the rules alone, no record")
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
    files = [f.resolve() for f in options.files] or with_answers(options.answers)
    missing = [str(f) for f in files if not f.is_file()]
    if missing or not files:
        parser.error(f"no such file: {', '.join(missing)}" if missing else "there are no answers: name the kernels")
    begin = datetime.datetime.now(datetime.UTC)
    kernels = []
    for file in files:
        runs = []
        for seed in range(options.seeds):
            print(f"{file.name}, seed {seed} …", file=sys.stderr, flush=True)
            runs.append(compared(file, seed, options))
        kernels.append({"kernel": file.stem, "runs": runs, **across_seeds(runs)})
    record = {
        **head(SCHEMA, __file__, given, begin),
        "answers": provenance(options.answers),
        "candidates": options.candidates,
        "rounds": options.rounds,
        "prompt_profile": options.prompt_profile,
        "method": METHOD,
        "summary": summary(kernels),
        "kernels": kernels,
    }
    if options.record is not None:
        options.record.parent.mkdir(parents=True, exist_ok=True)
        options.record.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(table(record))
    return 1 if any(run["error"] for kernel in kernels for run in kernel["runs"]) else 0


METHOD = (
    "Each ratio is the original's time over the suggestion's, confirmed on fresh inputs in a second process; a run that suggests "
    "nothing counts as 1. Gain: the model path's ratio over the rules'. Its interval combines the two intervals as independent "
    "errors of the logarithms. With several seeds: geometric means over them."
)


# ---- runs


def compared(file: Path, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Both runs over one kernel. `error` is None, or the sentence that one of them ended with."""
    folder = options.out.resolve() / file.stem / f"seed{seed}"
    common = ["--seed", str(seed), "--device", options.device]
    found: dict[str, Any] = {"seed": seed, "error": None, "rules": None}
    if not options.questions_only:
        found["rules"] = run(file, folder / "rules", ["--budget", str(options.candidates), *common])
    model, passes, matched = in_passes(file, folder, common, options)
    found |= {"model": model, "passes": passes, "answers": matched}
    found["error"] = (found["rules"] or {}).get("error") or model["error"]
    if found["rules"] is not None and found["error"] is None:
        found |= gain(found["rules"], model)
    return found


def in_passes(
    file: Path, folder: Path, common: Sequence[str], options: argparse.Namespace
) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """The run with a model, and what became of each recorded answer."""
    recorded = recording(options.answers / file.stem, options.rounds)
    batch = folder / "batch"
    batch.mkdir(parents=True, exist_ok=True)
    for name in ("requests.jsonl", "responses.jsonl", "index.jsonl"):
        (batch / name).unlink(missing_ok=True)
    # One pass without answers, one for each round that has some, and one for answers that find their question by what it is about.
    there = max((line["round"] for line in recorded), default=0)
    count = 1 + there + (1 if there and not options.questions_only else 0)
    passes: list[dict[str, Any]] = []
    given: dict[str, dict[str, Any]] = {}
    renamed: dict[str, str] = {}
    last: dict[str, Any] = {}
    for number in range(count):
        if number:
            for line in recorded:
                if line["round"] <= number:
                    given.setdefault(line["custom_id"], line)
            for question in lines_of(batch / "index.jsonl"):
                answered = answered_names(folder / "model" / "exchanges.jsonl")
                open_ones = [
                    r for r in recorded if r["round"] <= number and r["custom_id"] not in {*answered, *renamed}
                ]
                line = match(question, open_ones)
                if line is not None and question["custom_id"] not in given:
                    renamed[line["custom_id"]] = question["custom_id"]
                    given[question["custom_id"]] = line
            write_responses(batch / "responses.jsonl", given)
        budget = max(1, options.candidates * (number + 1) // count)
        arguments = [
            "--budget", str(budget), *common, "--proposers", "rules,llm", "--llm", f"batch:{batch}", "--llm-model", MODEL,
            "--prompt-profile", options.prompt_profile, *(["--resume"] if number else []),
        ]  # fmt: skip
        last = run(file, folder / "model", arguments)
        passes.append(
            {
                "budget": budget,
                "answers": len(given),
                "error": last["error"],
                "wall_s": last["wall_s"],
                "open": len(lines_of(batch / "requests.jsonl")),
            }
        )
        if last["error"] is not None:
            break
    (folder / "questions.md").write_text(questions(batch), encoding="utf-8")
    notes = (last["result"] or {}).get("notes", [])
    return last, passes, verdicts(recorded, renamed, folder / "model" / "exchanges.jsonl") | {"notes": notes}


def run(file: Path, out: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """One run of the installed command. `error` is None, or the sentence it ended with."""
    command = [optiml(), "optimize", str(file), "--out", str(out), "--format", "json", *arguments]
    found: dict[str, Any] = {"error": None, "result": None}
    begin = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        found["exit_code"] = done.returncode
        if done.returncode in (0, WAITING) and done.stdout.strip():
            found["result"] = trimmed(json.loads(done.stdout))
            found["result"]["provenance"]["command"] = shown(found["result"]["provenance"]["command"])
        else:
            found["error"] = done.stderr.strip()[-2000:] or f"exit code {done.returncode} without a word"
    except subprocess.TimeoutExpired:
        found["error"] = "did not end in time"
    found["wall_s"] = round(time.monotonic() - begin, 3)
    return found


# ---- recorded answers


def recording(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """The answers of one kernel up to a round, in order. Exits where a line is none."""
    found = []
    for number in range(1, rounds + 1):
        path = folder / f"round{number}.jsonl"
        for line in lines_of(path):
            if not {"custom_id", "response", "about", "label"} <= set(line):
                sys.exit(f"{path}: a line lacks custom_id, response, about or label; pack it anew")
            found.append({**line, "round": number})
    return found


def match(question: Mapping[str, Any], recorded: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The recorded answer to a question that has another name now: about the same edits, at the same place."""
    for line in recorded:
        if line["about"] == question["about"] and place(line["label"]) == place(question["label"]):
            return line
    return None


def answered_names(exchanges: Path) -> set[str]:
    """The names of the questions that a run had an answer for."""
    return {custom_id(line["label"], MODEL) for line in lines_of(exchanges) if "answer" in line}


def place(label: str) -> tuple[str, ...]:
    """A label without the hashes of programs: what kind of question, and which of several."""
    kind, *rest = label.split("/")
    return (kind, *rest[1:]) if kind == "propose" else (kind, rest[-1])


def write_responses(path: Path, given: Mapping[str, Mapping[str, Any]]) -> None:
    """A batch's output file with these answers, under the names that the questions have."""
    kept = ("id", "response", "error")
    lines = [{**{k: line.get(k) for k in kept}, "custom_id": name} for name, line in given.items()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def verdicts(recorded: Sequence[Mapping[str, Any]], renamed: Mapping[str, str], exchanges: Path) -> dict[str, Any]:
    """What became of each recorded answer: given to its question, or not asked for."""
    names = answered_names(exchanges)
    given = [line for line in recorded if renamed.get(line["custom_id"], line["custom_id"]) in names]
    lost = [line for line in recorded if line not in given]
    return {
        "recorded": len(recorded),
        "given": len(given),
        "by_what_they_are_about": sorted(renamed),
        "not_asked_for": [
            {"round": line["round"], "custom_id": line["custom_id"], "about": line["about"], "label": line["label"]}
            for line in lost
        ],
    }


def pack(draft: Path, answers: Path, kernel: str, number: int, index: Path) -> int:
    """Turn a draft into `<answers>/<kernel>/round<number>.jsonl`. Exit code 2 where an answer is for no open question."""
    known = {line["custom_id"]: line for line in lines_of(index / "index.jsonl")}
    parts = re.split(r"^=== (\S+)[^\n]*\n", draft.read_text(encoding="utf-8"), flags=re.M)
    lines = []
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        if name not in known:
            print(f"{draft}: no open question is called {name}", file=sys.stderr)
            return 2
        message = {"role": "assistant", "content": text.strip("\n"), "refusal": None}
        body = {
            "object": "chat.completion",
            "model": MODEL,
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        }
        lines.append(
            {
                "id": f"batch_req_{name}",
                **known[name],
                "response": {"status_code": 200, "request_id": name, "body": body},
                "error": None,
            }
        )
    if not lines:
        print(f"{draft}: holds no answer; each begins with a line === <custom_id>", file=sys.stderr)
        return 2
    path = answers / kernel / f"round{number}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    print(f"{len(lines)} answers in {path}")
    return 0


def questions(batch: Path) -> str:
    """The open questions in words, for whoever answers them."""
    about = {line["custom_id"]: line for line in lines_of(batch / "index.jsonl")}
    parts = []
    for request in lines_of(batch / "requests.jsonl"):
        name = request["custom_id"]
        parts.append(f"=== {name}\n\nAbout: {about[name]['about']} ({about[name]['label']})\n")
        parts += [f"--- {m['role']}\n\n{m['content']}\n" for m in request["body"]["messages"]]
    return "\n".join(parts)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """A file of JSON lines; nothing where it is not there. Exits where a line is none."""
    if not path.exists():
        return []
    found = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            sys.exit(f"{path}:{number}: is no JSON object")
        found.append(value)
    return found


def with_answers(answers: Path) -> list[Path]:
    """The example kernels that the recorded set has answers for."""
    return [ROOT / "examples" / f"{path.name}.cu" for path in sorted(answers.iterdir()) if path.is_dir()]


def provenance(answers: Path) -> Any:
    """Who wrote the answers, when and how. Exits where that is not stated."""
    path = answers / "provenance.json"
    if not path.is_file():
        if any(answers.glob("*/round*.jsonl")):
            sys.exit(f"{path}: the answers' provenance is not stated")
        return None
    stated = json.loads(path.read_text(encoding="utf-8"))
    lacking = [key for key in ("author", "date", "how") if not stated.get(key)]
    if lacking:
        sys.exit(f"{path}: lacks {', '.join(lacking)}")
    return stated


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
    """The geometric mean of a kernel's gains over seeds, the interval's errors as independent ones."""
    good = [run for run in runs if run.get("gain")]
    if not good:
        return {"gain": None, "low": None, "high": None}
    logs = [math.log(run["gain"]) for run in good]
    mean = sum(logs) / len(good)
    down = math.sqrt(sum((math.log(run["gain"] / run["low"])) ** 2 for run in good)) / len(good)
    up = math.sqrt(sum((math.log(run["high"] / run["gain"])) ** 2 for run in good)) / len(good)
    return {"gain": math.exp(mean), "low": math.exp(mean - down), "high": math.exp(mean + up)}


def summary(kernels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The geometric mean over kernels and whether it reaches the goal; how many answers found their question."""
    logs = [math.log(kernel["gain"]) for kernel in kernels if kernel["gain"]]
    mean = math.exp(sum(logs) / len(logs)) if logs else None
    runs = [run for kernel in kernels for run in kernel["runs"]]
    return {
        "kernels": len(logs),
        "geometric_mean": mean,
        "goal": GOAL,
        "reached": mean is not None and mean >= GOAL,
        "answers_given": sum(run["answers"]["given"] for run in runs),
        "answers_not_asked_for": sum(len(run["answers"]["not_asked_for"]) for run in runs),
        "guardrails_failed": sum(len(run.get("guardrails_failed", ())) for run in runs),
    }


def table(record: Mapping[str, Any]) -> str:
    """The record as a Markdown table."""
    lines = [
        "| kernel | rules | with the model | gain | 95 % interval | answers given | open questions |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for kernel in record["kernels"]:
        for run in kernel["runs"]:
            answers = f"{run['answers']['given']} of {run['answers']['recorded']}"
            opened = run["passes"][-1]["open"]
            if run.get("gain") is None:
                reason = (run["error"] or "questions only").splitlines()[-1][:80]
                lines.append(f"| {kernel['kernel']} | {reason} | | | | {answers} | {opened} |")
                continue
            lines.append(
                f"| {kernel['kernel']} | {run['rules_ratio']:.2f} | {run['model_ratio']:.2f} | {run['gain']:.2f} "
                f"| {run['low']:.2f} to {run['high']:.2f} | {answers} | {opened} |"
            )
    total = record["summary"]
    if total["geometric_mean"]:
        lines += ["", f"Geometric mean {total['geometric_mean']:.2f} over {total['kernels']} kernels (goal {GOAL})."]
    for kernel in record["kernels"]:
        for run in kernel["runs"]:
            for lost in run["answers"]["not_asked_for"]:
                lines.append(
                    f"Not asked for: {kernel['kernel']}, round {lost['round']}, {lost['custom_id']} ({lost['about']})"
                )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
