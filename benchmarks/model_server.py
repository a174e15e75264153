"""Runs `optiml optimize` with a real model behind a real server, the model alone proposing, and records what came of every exchange.

    python benchmarks/llama_server.py --port 8099 &
    OPTIML_TEST_MODEL_URL=http://127.0.0.1:8099/v1 python benchmarks/model_server.py --record benchmarks/results/model_smollm2.json

A model of 135 million parameters cannot write CUDA, and that is the point: the run has to end with every bad edit refused, nothing lost
and no improvement claimed. Exit code 0 when that is so, or when what is claimed was confirmed; 1 otherwise; 2 without a server.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.examples import ROOT, head, optiml, shown, trimmed

SCHEMA = "optiml.model_server/1"
_SHOWN = 400  # characters of an answer in the record


def main(given: Sequence[str] | None = None) -> int:
    """Run and record; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Run optiml with a real model and record every exchange's ending.")
    parser.add_argument("file", nargs="?", type=Path, default=ROOT / "examples" / "gelu_bias.cu", metavar="FILE")
    parser.add_argument("--budget", default="5m", help="of the run (default: 5m)")
    parser.add_argument("--answer-tokens", type=int, default=400, help="of one answer (default: 400)")
    parser.add_argument("--timeout", type=int, default=240, metavar="S", help="for one answer (default: 240)")
    parser.add_argument("--free-form", action="store_true", help="do not hold the model to the form of an answer")
    parser.add_argument("--device", choices=("auto", "gpu", "cpu"), default="cpu")
    parser.add_argument("--out", type=Path, default=ROOT / ".optiml" / "model_server")
    parser.add_argument("--record", type=Path, required=True)
    options = parser.parse_args(given)
    url = os.environ.get("OPTIML_TEST_MODEL_URL", "")
    if not url:
        parser.error("OPTIML_TEST_MODEL_URL names no server")
    begin = datetime.datetime.now(datetime.UTC)
    command = [
        optiml(), "optimize", str(options.file), "--proposers", "llm", "--budget", options.budget, "--device", options.device,
        "--llm-answer-tokens", str(options.answer_tokens), "--llm-timeout", str(options.timeout),
        "--out", str(options.out), "--format", "json", *(["--llm-free-form"] if options.free_form else []),
    ]  # fmt: skip
    started = time.monotonic()
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OPENAI_BASE_URL": url}
    )
    result = json.loads(done.stdout) if done.returncode == 0 else None
    record = {
        **head(SCHEMA, __file__, given, begin),
        "models": models(url),
        "wall_s": round(time.monotonic() - started, 1),
        "error": None if result is not None else done.stderr.strip()[-2000:] or f"exit code {done.returncode}",
        "result": trimmed(result) if result is not None else None,
        "exchanges": exchanges(options.out / "exchanges.jsonl"),
    }
    if result is not None:
        result["provenance"]["command"] = shown(result["provenance"]["command"])
    record["checks"] = checks(record)
    options.record.parent.mkdir(parents=True, exist_ok=True)
    options.record.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(table(record))
    return 0 if all(record["checks"].values()) else 1


def models(url: str) -> list[str]:
    """The names that the server lists, without folders."""
    try:
        with urllib.request.urlopen(f"{url}/models", timeout=20) as answer:
            return [Path(str(model["id"])).name for model in json.loads(answer.read(1 << 20))["data"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def exchanges(path: Path) -> list[dict[str, Any]]:
    """What was asked and how it ended, prompts left out."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        value = json.loads(line)
        if "edit" in value:
            found.append({"edit": value["edit"]})
        elif "error" in value:
            error = value["error"]
            found.append({"label": value["label"], "fault": error["fault"], "text": error["text"][:_SHOWN]})
        else:
            answer = value["answer"]
            usage = {key: answer["usage"][key] for key in ("prompt_tokens", "completion_tokens")}
            found.append(
                {"label": value["label"], **usage, "seconds": answer["elapsed_s"], "text": answer["text"][:_SHOWN]}
            )
    return found


def checks(record: Mapping[str, Any]) -> dict[str, bool]:
    """What has to hold whatever the model answers."""
    result = record["result"]
    if result is None:
        return {"the run ended with a result": False}
    model, best = result["model"], result["best"]
    asked = [e for e in record["exchanges"] if "label" in e]
    tried = [e["edit"] for e in record["exchanges"] if "edit" in e]
    return {
        "the run ended with a result": True,
        "every question is kept with its ending": len(asked) == model["requests"] > 0,
        "every edit is in the journal with its outcome": len(tried) == len(model["edits"]) == result["counts"]["candidates"],
        "what is claimed was confirmed": best is None
        or best["evaluation"]["outcome"] in ("accepted", "screened"),
        "without a confirmed edit no improvement is claimed": best is not None
        or result["verdict"].startswith(("No improvement found", "No candidate was tried")),
    }  # fmt: skip


def table(record: Mapping[str, Any]) -> str:
    """The record in a few lines."""
    lines = [f"models: {', '.join(record['models'])}; {record['wall_s']:.0f} s"]
    if record["result"] is None:
        return "\n".join([*lines, f"failed: {record['error']}"])
    model = record["result"]["model"]
    lines += [
        record["result"]["verdict"],
        f"{model['requests']} questions, {model['proposals']} edits, faults: {model['faults'] or 'none'}",
        f"outcomes of edits: {dict(Counter(e['outcome'] for e in model['edits'])) or 'none'}",
        f"tokens: {model['spent']['prompt_tokens']} read, {model['spent']['completion_tokens']} written",
        *(f"{'holds' if held else 'DOES NOT HOLD'}: {what}" for what, held in record["checks"].items()),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
