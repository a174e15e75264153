"""The comparison with recorded answers: packing, matching, runs side by side and figures, without running a search."""

import argparse
import json
import math
import threading
from pathlib import Path

import pytest

from benchmarks import answer_set
from benchmarks import recorded_answers as ra
from engine.llm.batch import custom_id


def question(label, about):
    return {"custom_id": custom_id(label, answer_set.MODEL), "label": label, "about": about}


ROOT_QUESTION = question("propose/aaaa/0/0", "original")


@pytest.fixture
def packed(tmp_path):
    batch = tmp_path / "batch"
    batch.mkdir()
    (batch / "index.jsonl").write_text(json.dumps(ROOT_QUESTION) + "\n")
    draft = tmp_path / "draft.txt"
    draft.write_text(f"=== {ROOT_QUESTION['custom_id']} the original\nIdea: go faster\n=== not a heading\n\n")
    given = [
        "--pack",
        str(draft),
        "--kernel",
        "k",
        "--round",
        "1",
        "--index",
        str(batch),
        "--answers",
        str(tmp_path / "set"),
    ]
    assert ra.main([*given[:-2], "--answers", str(tmp_path / "none")]) == 2  # `not` is no open question
    draft.write_text(draft.read_text().replace("=== not", " === not"))
    assert ra.main(given) == 0
    return tmp_path / "set"


def test_a_draft_becomes_lines_of_a_batchs_output(packed, tmp_path):
    (line,) = answer_set.recording(packed / "k", 3)
    assert (line["label"], line["about"], line["round"]) == ("propose/aaaa/0/0", "original", 1)
    answer_set.write_responses(tmp_path / "responses.jsonl", {line["custom_id"]: line})
    from engine.llm.batch import BatchClient
    from engine.llm.chat import ChatRequest, Message

    client = BatchClient(tmp_path, answer_set.MODEL)
    answer = client.complete(ChatRequest((Message("user", "x"),), "propose/aaaa/0/0"))
    assert answer.text == "Idea: go faster\n === not a heading"


def test_an_answer_finds_a_question_that_has_another_name_by_what_it_is_about(packed):
    recorded = answer_set.recording(packed / "k", 1)
    assert answer_set.match(question("propose/bbbb/0/0", "original"), recorded) is recorded[0]
    assert answer_set.match(question("propose/bbbb/1/0", "original"), recorded) is None
    assert answer_set.match(question("propose/bbbb/0/0", "original > Unroll it"), recorded) is None
    assert answer_set.match(question("repair/bbbb/cccc/0", "original"), recorded) is None


def test_an_answer_that_nobody_asked_for_is_named(packed):
    recorded = answer_set.recording(packed / "k", 1)
    exchanges = [{"label": "propose/zzzz/0/0", "answer": {}}]
    told = answer_set.verdicts(recorded, {}, exchanges)
    assert (told["given"], [lost["about"] for lost in told["not_asked_for"]]) == (0, ["original"])
    told = answer_set.verdicts(
        recorded, {recorded[0]["custom_id"]: custom_id("propose/zzzz/0/0", answer_set.MODEL)}, exchanges
    )
    assert (told["given"], told["not_asked_for"]) == (1, [])


def test_the_provenance_must_be_stated(packed):
    with pytest.raises(SystemExit, match="provenance"):
        answer_set.provenance(packed)
    (packed / "provenance.json").write_text(json.dumps({"author": "a", "date": "d"}))
    with pytest.raises(SystemExit, match="how"):
        answer_set.provenance(packed)
    (packed / "provenance.json").write_text(json.dumps({"author": "a", "date": "d", "how": "h"}))
    assert answer_set.provenance(packed)["author"] == "a"


def run(ratio, low, high):
    measurement = {"ratio": ratio, "low": low, "high": high}
    best = {"evaluation": {"measurement": measurement, "guardrails": [{"name": "g", "verdict": "passed"}]}}
    step = {"proposer": "llm", "summary": "s"}
    return {"result": {"best": best, "trajectory": [step], "counts": {"candidates": 80}}}


def test_the_gain_is_the_quotient_with_both_intervals():
    found = ra.gain(run(2.0, 1.9, 2.1), run(4.0, 3.9, 4.1))
    assert found["gain"] == pytest.approx(2.0)
    assert math.log(found["gain"] / found["low"]) == pytest.approx(math.hypot(math.log(4 / 3.9), math.log(2.1 / 2)))
    nothing = {"result": {"best": None, "trajectory": [], "counts": {"candidates": 80}}}
    assert ra.gain(nothing, run(3.0, 2.9, 3.1))["gain"] == pytest.approx(3.0)
    assert ra.gain(run(3.0, 2.9, 3.1), nothing)["gain"] == pytest.approx(1 / 3.0)
    assert found["steps"] == ["llm: s"]


def profiled(gain, tokens=(), **more):
    answers = {"given": 2, "recorded": 2, "not_asked_for": []}
    told = {"tokens": dict(tokens), "with_diagnosis": 0, "with_counters": 0}
    measured = (
        {}
        if gain is None
        else {"gain": gain, "low": 0.9 * gain, "high": 1.1 * gain, "rules_ratio": 1.0, "model_ratio": gain}
    )
    return {**measured, "answers": answers, "prompts": told, "open": 1, **more}


def seed(error=None, **profiles):
    return {"seed": 0, "error": error, "rules": None, "profiles": profiles}


def kernel(name, *runs):
    return {"kernel": name, "runs": list(runs), **ra.across_seeds(runs)}


def test_means_are_geometric_and_the_goal_is_held_against_them():
    several = ra.across_seeds([seed(diagnosis=profiled(1.0)), seed(diagnosis=profiled(4.0))])
    assert several["gain"] == pytest.approx(2.0)
    kernels = [kernel(str(gain), seed(diagnosis=profiled(gain))) for gain in (1.0, 1.6)]
    told = ra.summary(kernels)
    assert told["geometric_mean"] == pytest.approx(1.6**0.5)
    assert told["reached"] is False
    assert told["answers_given"] == 4
    assert ra.summary([kernels[1]])["reached"] is True


def test_profiles_are_compared_by_the_prompts_that_all_of_them_have():
    runs = [
        seed(
            diagnosis=profiled(
                2.0,
                {"a": 1100, "b": 1300, "c": 9999},
            ),
            none=profiled(1.8, {"a": 1000, "b": 1200}),
        ),
        seed("the second failed", diagnosis=profiled(None, {"d": 500})),
    ]
    told = ra.summary([kernel("k", *runs)])["profiles"]
    assert [told[name]["geometric_mean"] for name in ("diagnosis", "none")] == pytest.approx([2.0, 1.8])
    assert (told["none"]["tokens_of_a_common_prompt"], told["none"]["common_prompts"]) == (1100, 2)
    assert told["diagnosis"]["tokens_of_a_common_prompt"] == pytest.approx((1100 + 1300 + 500) / 3)


def test_what_prompts_held_is_counted_where_they_had_no_answer():
    def line(label, text, fault="deferred"):
        return {"label": label, "error": {"fault": fault}, "messages": [{"role": "user", "content": text}]}

    told = answer_set.prompts([
        line("a", "## What holds it back\n- memory-bound"), line("b", "x"), line("c", "## Counters", "refused"),
        {"label": "d", "answer": {}, "messages": [{"role": "user", "content": "## What holds it back"}]}, {"edit": {}},
    ])  # fmt: skip
    assert (list(told["tokens"]), told["with_diagnosis"], told["with_counters"]) == (["a", "b"], 1, 0)
    assert told["tokens"]["a"] > told["tokens"]["b"] > 0


def options(**more):
    given = {
        "gpus": 0,
        "seeds": 1,
        "candidates": 8,
        "rounds": 3,
        "device": "gpu",
        "profiles": ["diagnosis"],
        "questions_only": False,
    }
    return argparse.Namespace(**{**given, **more})


def test_kernels_run_side_by_side_each_on_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    held, together = set(), threading.Barrier(2, timeout=10)

    def compare(file, seed, options, environment):
        device = environment["CUDA_VISIBLE_DEVICES"]
        assert device not in held
        held.add(device)
        together.wait()  # both at once, or never
        held.discard(device)
        if file.stem == "b" and seed:
            raise OSError("the GPU has fallen off the bus")
        return {"seed": seed, "device": device}

    found = {
        (file.stem, n): run
        for file, n, run in ra.everything([Path("a.cu"), Path("b.cu")], options(gpus=2, seeds=2), compare)
    }
    assert set(found) == {("a", 0), ("a", 1), ("b", 0), ("b", 1)}
    failed = found.pop(("b", 1))
    assert "fallen off" in failed["error"]
    assert {run["device"] for run in found.values()} <= {"4", "5"}
    with pytest.raises(SystemExit, match="names 3"):
        ra.devices(4)
    assert ra.devices(0) == [{}]


class Command:
    """Stands for the installed command: asks about the original, then about what the answer to that leads to."""

    def __init__(self, monkeypatch, key="aaaa"):
        self.key, self.calls = key, []
        monkeypatch.setattr(ra, "run", self.run)

    def run(self, file, out, arguments, environment):
        self.calls.append((out.name, arguments, environment))
        ratio = 2.0
        if "--llm" in arguments:
            batch = Path(arguments[arguments.index("--llm") + 1].removeprefix("batch:"))
            answers = {line["custom_id"] for line in answer_set.lines_of(batch / "responses.jsonl")}
            exchanges, left = [], []
            for label, about in ((f"propose/{self.key}/0/0", "original"), (f"propose/{self.key}2/0/0", "original > s")):
                asked = question(label, about)
                messages = [
                    {"role": "system", "content": f"Task, between data-{'a1' * 6}"},
                    {"role": "user", "content": label},
                ]
                if asked["custom_id"] in answers:
                    exchanges.append({"label": label, "answer": {}, "messages": messages})
                    ratio *= 1.5
                    continue
                exchanges.append({"label": label, "error": {"fault": "deferred"}, "messages": messages})
                left.append((asked, messages))
                break
            out.mkdir(parents=True, exist_ok=True)
            jsonl(out / "exchanges.jsonl", exchanges)
            jsonl(batch / "index.jsonl", [asked for asked, _ in left])
            jsonl(batch / "requests.jsonl", [{"custom_id": q["custom_id"], "body": {"messages": m}} for q, m in left])
        return {"error": None, "wall_s": 1.0, **run(ratio, ratio * 0.99, ratio * 1.01)}


def jsonl(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Two rounds of answers for the kernel `k`, which is one of the suite."""
    folder = tmp_path / "answers" / "k"
    folder.mkdir(parents=True)
    for number, (label, about) in enumerate(
        [("propose/aaaa/0/0", "original"), ("propose/aaaa2/0/0", "original > s")], 1
    ):
        jsonl(folder / f"round{number}.jsonl", [{**question(label, about), "id": "x", "response": {}, "error": None}])
    stated = {"author": "a", "date": "d", "how": "h"}
    (folder.parent / "provenance.json").write_text(json.dumps(stated))
    for name in ("examples", "suite"):
        (tmp_path / name).mkdir()
    (tmp_path / "suite" / "k.cu").write_text("")
    monkeypatch.setattr(answer_set, "FOLDERS", (tmp_path / "examples", tmp_path / "suite"))
    return folder.parent


def compare(tmp_path, recorded, *more):
    record = tmp_path / "record.json"
    code = ra.main(["--answers", str(recorded), "--out", str(tmp_path / "out"), "--record", str(record), *more])
    assert code == 0
    return json.loads(record.read_text())


def test_all_answers_are_at_hand_from_the_start(tmp_path, recorded, monkeypatch):
    command = Command(monkeypatch)
    record = compare(tmp_path, recorded)
    assert [name for name, *_ in command.calls] == ["rules", "model"]
    budgets = {arguments[arguments.index("--budget") + 1] for _, arguments, _ in command.calls}
    assert budgets == {"80"}
    (one,) = record["kernels"]
    assert one["gain"] == pytest.approx(2.25)
    assert one["runs"][0]["profiles"]["diagnosis"]["answers"]["given"] == 2
    assert record["complete"] is True


def test_where_names_have_changed_the_run_is_made_anew_with_what_is_found_again(tmp_path, recorded, monkeypatch):
    command = Command(monkeypatch, key="bbbb")
    told = compare(tmp_path, recorded)["kernels"][0]["runs"][0]["profiles"]["diagnosis"]
    assert [name for name, *_ in command.calls] == ["rules", "model", "model", "model"]
    assert not any("--resume" in arguments for _, arguments, _ in command.calls)
    assert (told["runs"], told["answers"]["given"], len(told["answers"]["by_what_they_are_about"])) == (3, 2, 2)


def test_each_profile_has_a_run_of_its_own_beside_one_with_the_rules(tmp_path, recorded, monkeypatch):
    command = Command(monkeypatch)
    record = compare(tmp_path, recorded, "--profiles", "diagnosis,none", "--gpus", "2", "--rounds", "1")
    assert [name for name, *_ in command.calls] == ["rules", "model", "model-none"]
    assert all(e["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID" and "--jobs" in a for _, a, e in command.calls)
    assert set(record["summary"]["profiles"]) == {"diagnosis", "none"}
    assert record["summary"]["profiles"]["none"]["common_prompts"] == 1
    table = ra.table(record)
    assert "| k | none | 2.00 | 3.00 | 1.50 |" in table
    assert "| diagnosis | 1.50 | 1 | 0 | 0 |" in table
    with pytest.raises(SystemExit):
        compare(tmp_path, recorded, "--profiles", "none,some")


def test_a_record_is_there_after_each_kernel(tmp_path, recorded, monkeypatch):
    (tmp_path / "examples" / "m.cu").write_text("")
    seen = []

    def everything(files, options):
        for file in reversed(files):
            yield file, 0, seed("no GPU") if file.stem == "m" else seed(diagnosis=profiled(1.5))
            seen.append(json.loads((tmp_path / "record.json").read_text()))

    monkeypatch.setattr(ra, "everything", everything)
    files = [str(tmp_path / "suite" / "k.cu"), str(tmp_path / "examples" / "m.cu")]
    given = [*files, "--answers", str(recorded), "--record", str(tmp_path / "record.json")]
    assert ra.main(given) == 1
    assert [r["complete"] for r in seen] == [False, True]
    assert [k["kernel"] for k in seen[1]["kernels"]] == ["k", "m"]  # as they were given, not as they ended
    assert seen[1]["summary"]["failed"] == 1


def test_other_kernels_of_a_record_are_kept_under_the_same_options(tmp_path, recorded, monkeypatch):
    (tmp_path / "examples" / "m.cu").write_text("")
    gains = iter((1.5, 2.0, 3.0))
    monkeypatch.setattr(
        ra, "everything", lambda files, options: [(f, 0, seed(diagnosis=profiled(next(gains)))) for f in files]
    )
    record = tmp_path / "record.json"
    k, m = str(tmp_path / "suite" / "k.cu"), str(tmp_path / "examples" / "m.cu")
    more = ["--answers", str(recorded), "--record", str(record)]
    assert ra.main([m, k, *more]) == 0
    assert ra.main([k, *more, "--resume"]) == 0
    kept = {kernel["kernel"]: kernel["gain"] for kernel in json.loads(record.read_text())["kernels"]}
    assert kept == {"k": pytest.approx(3.0), "m": pytest.approx(1.5)}
    with pytest.raises(SystemExit, match="another candidates"):
        ra.main([k, *more, "--resume", "--candidates", "7"])
    with pytest.raises(SystemExit, match="no record"):
        ra.main([k, "--answers", str(recorded), "--record", str(tmp_path / "none.json"), "--resume"])


def test_a_run_refused_for_a_disturbance_shows_nothing():
    refused = {"evaluation": {"outcome": "unstable", "failure": {"reason": "another process used the GPU (process 7)"}}}
    wrong = {"evaluation": {"outcome": "wrong_result", "failure": {"reason": "differs"}}}
    assert ra.disturbed({"best": None, "refused": [wrong, refused]}) == (
        "was disturbed: another process used the GPU (process 7)"
    )
    assert ra.disturbed({"best": None, "refused": [wrong]}) is None
    assert ra.disturbed({"best": {}, "refused": [refused]}) is None


def test_the_task_stands_once_above_the_questions(tmp_path):
    def request(name, fence, system="Make it faster"):
        text = f"{system}; data stands between <data-{fence}> and </data-{fence}>"
        messages = [{"role": "system", "content": text}, {"role": "user", "content": f"the source of {name}"}]
        return {"custom_id": name, "body": {"messages": messages}}

    requests = [request("one", "a" * 12), request("two", "b" * 12), request("three", "c" * 12, "Judge")]
    jsonl(tmp_path / "requests.jsonl", requests)
    jsonl(
        tmp_path / "index.jsonl", [{"custom_id": r["custom_id"], "about": "original", "label": "l"} for r in requests]
    )
    text = answer_set.questions(tmp_path)
    assert text.count("Make it faster; data stands between <data-…>") == 1
    assert text.index("Judge") < text.index("=== one\n\nTask A. About: original")
    assert "=== three\n\nTask B." in text
    assert text.count("the source of") == 3


def test_kernels_with_answers_are_found_among_examples_and_suite(recorded, tmp_path):
    assert answer_set.with_answers(recorded) == [tmp_path / "suite" / "k.cu"]
    (tmp_path / "examples" / "k.cu").write_text("")
    assert answer_set.with_answers(recorded) == [tmp_path / "examples" / "k.cu"]
    (recorded / "stranger").mkdir()
    (recorded / "stranger" / "round1.jsonl").write_text("")
    with pytest.raises(SystemExit, match="stranger"):
        answer_set.with_answers(recorded)
