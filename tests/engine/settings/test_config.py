"""The settings: what is read, what is refused and where, and the published schema."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from engine.settings.config import Config, key_of, load_config, matches, parse_config, schema, schema_text
from engine.settings.config_text import ConfigError

ROOT = Path(__file__).resolve().parents[3]


def refused(text: str, path: str = ".optiml.yml") -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_config(text.encode(), path)
    return caught.value


def test_an_empty_file_means_the_defaults() -> None:
    assert parse_config(b"", ".optiml.yml") == Config()
    assert parse_config(b"# nothing yet\n", ".optiml.yml") == Config()
    assert parse_config(b"[tool.optiml]\n", "pyproject.toml") == Config()


def test_a_pyproject_without_settings_is_none() -> None:
    assert parse_config(b"[project]\nname = 'x'\n", "pyproject.toml") is None
    assert parse_config(b"tool = 3\n", "pyproject.toml") is None


def test_both_languages_give_the_same() -> None:
    text = "paths: ['src/**/*.cu']\nbudget:\n  total: 5m\n  kernels: 3\npost: {conclusion: failure}\ncheck:\n  fail: [spills]\n"
    toml = (
        "[tool.optiml]\npaths = ['src/**/*.cu']\nbudget = { total = '5m', kernels = 3 }\n"
        "[tool.optiml.post]\nconclusion = 'failure'\n[tool.optiml.check]\nfail = ['spills']\n"
    )
    config = parse_config(text.encode(), ".optiml.yml")
    assert config == parse_config(toml.encode(), "pyproject.toml")
    assert config is not None
    assert (config.budget.total, config.budget.kernels, config.check.fail) == (300.0, 3, ("spills",))


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("budgets:\n  total: 5m\n", 1, "did you mean 'budget'?"),
        ("budget:\n  kernel: 60s\n  totl: 5m\n", 3, "did you mean 'total'?"),
        ("paths: src\n", 1, "a string, not a list"),
        ("targets: [sm_90,\n  sm90]\n", 2, "expected e.g. sm_90"),
        ("paths:\n  - a.cu\n  - a.cu\n", 3, "given twice"),
        ("paths: ['../x.cu']\n", 1, "relative to the root"),
        ("paths: [/etc/passwd]\n", 1, "relative to the root"),
        ("budget: 5m\n", 1, "'budget' is a string, not a table"),
        ("budget: {total: 300}\n", 1, "write a time such as 90s"),
        ("budget: {total: 1s}\n", 1, "out of range"),
        ("budget: {kernels: 2.5}\n", 1, "a whole number"),
        ("budget: {kernels: true}\n", 1, "true or false"),
        ("thresholds: {speedup: .nan}\n", 1, "out of range"),
        ("post:\n  review: 'yes'\n", 2, "write true or false"),
        ("post:\n  conclusion: failed\n", 2, "did you mean 'failure'?"),
        ("permissions: {apply: read}\n", 1, "write, maintain, admin"),
        ("check: {fail: [spill]}\n", 1, "did you mean 'spills'?"),
        ("guardrails: {case: fast}\n", 1, "'guardrails.case' is a string; write a number from 1 to 10"),
        ("guardrails:\n  case: 0.9\n", 2, "out of range"),
        ("guardrails:\n  spills: true\n", 2, "write a number from 1 to 100"),
        ("guardrails: {repeatable: 1}\n", 1, "write true or false"),
        ("guardrails: {sanitizers: memcheck}\n", 1, "a string, not a list"),
        ("guardrails: {sanitizers: [memchek]}\n", 1, "did you mean 'memcheck'?"),
        ("guardrails: {end_to_end: [1.03]}\n", 1, "is a list; write a number"),
        ("guardrails: {command: [make, bench]}\n", 1, "write a command such as"),
        ("guardrails: {command: 'make \"bench'}\n", 1, "open quote"),
        ("guardrails: {time: 5}\n", 1, "write a time such as 90s"),
        ("guardrails: 1.03\n", 1, "a number, not a table"),
        ("- a\n", 1, "a list, not a table"),
        ("paths: [a.cu]\npaths: [b.cu]\n", 2, "given twice"),
        ("a: &x [1]\nb: *x\n", 2, "alias"),
        ("a: !!python/object/apply:os.system ['true']\n", 1, "not valid YAML"),
        ("1: 2\n", 1, "plain word"),
        ("? [a]\n: 2\n", 1, "plain word"),
        ("paths: [\n", 2, "not valid YAML"),
        ("paths: [a.cu]\n---\npaths: [b.cu]\n", 2, "not valid YAML"),
        ("x: " + "[" * 60 + "]" * 60, 1, "nested too deeply"),
        ("model: {name: \"a\\nb\"}\n", 1, "the model's name"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_line(text: str, line: int, says: str) -> None:
    error = refused(text)
    assert error.where == f".optiml.yml:{line}"
    assert says in str(error)
    assert error.exit_code == 2


def test_toml_errors_have_lines_too() -> None:
    error = refused(
        "[project]\nname = 'x'\n\n[tool.optiml]\ntargets = ['sm_90']\n[tool.optiml.post]\nreveiw = true\n",
        "pyproject.toml",
    )
    assert error.where == "pyproject.toml:7"
    assert "did you mean 'review'?" in str(error)
    assert refused("[tool.optiml\n", "pyproject.toml").where == "pyproject.toml:1"


def test_no_text_and_a_huge_file_are_refused() -> None:
    with pytest.raises(ConfigError, match="UTF-8"):
        parse_config(b"a: \xff\n", ".optiml.yml")
    with pytest.raises(ConfigError, match="at most"):
        parse_config(b"#" * (1 << 20), ".optiml.yml")


@given(st.binary(max_size=200) | st.text(alphabet="ab:[]{}&*!-?|>'\"#%@ \n\t0.~", max_size=80).map(str.encode))
def test_any_bytes_give_settings_or_an_error(data: bytes) -> None:
    for path in (".optiml.yml", "pyproject.toml"):
        where, config = path, None
        try:
            config = parse_config(data, path)
        except ConfigError as error:
            where = error.where
        assert where.startswith(path)
        assert config is None or isinstance(config, Config)


def test_settings_in_both_files_are_refused(tmp_path: Path) -> None:
    assert load_config(tmp_path) == (Config(), "")
    (tmp_path / "pyproject.toml").write_text("[tool.optiml]\ntargets = ['sm_80']\n")
    config, name = load_config(tmp_path)
    assert (config.targets, name) == (("sm_80",), "pyproject.toml")
    (tmp_path / ".optiml.yml").write_text("targets: [sm_80]\n")
    with pytest.raises(ConfigError, match="one of the two"):
        load_config(tmp_path)


def test_links_and_pipes_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("token")
    (tmp_path / ".optiml.yml").symlink_to(tmp_path / "secret")
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path)
    assert "token" not in str(caught.value)
    (tmp_path / ".optiml.yml").unlink()
    os.mkfifo(tmp_path / ".optiml.yml")
    with pytest.raises(ConfigError, match="regular"):
        load_config(tmp_path)


@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        ("a.cu", "**/*.cu", True),
        ("x/y/a.cu", "**/*.cu", True),
        ("x/y/a.cu", "x/*.cu", False),
        ("x/y/a.cu", "x/**", True),
        ("x/a.cu", "x/**/a.cu", True),
        ("x/y/z/a.cu", "x/**/z/*.cu", True),
        ("xa.cu", "x/**", False),
        ("a.cuh", "*.cu", False),
        ("src/A.cu", "src/[a-z].cu", False),
    ],
)
def test_patterns(path: str, pattern: str, expected: bool) -> None:
    assert matches(path, pattern) is expected


@pytest.mark.timeout(5)
def test_a_hostile_pattern_costs_little() -> None:
    assert not matches("/".join(["a"] * 500), "/".join(["**"] * 60 + ["b"]))
    assert not matches("a" * 4000, "*a" * 90 + "b")


def test_excluded_files_are_not_wanted() -> None:
    config = dataclasses.replace(Config(), exclude=("third_party/**",))
    assert config.wants("src/k.cu")
    assert config.wants("src/k.cuh")
    assert not config.wants("third_party/x/k.cu")
    assert not config.wants("src/k.cpp")


# ---- the schema


def test_the_published_schema_is_the_current_one() -> None:
    command = [sys.executable, "-m", "engine.settings.config"]
    written = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert written == schema_text()
    assert (ROOT / "docs" / "optiml.schema.json").read_text() == written, "run 'make schema'"


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


def _defaults(table: Any) -> Any:
    if "properties" not in table:
        return table["default"]
    return {key: _defaults(value) for key, value in table["properties"].items()}


def test_the_defaults_of_the_schema_are_those_of_the_reader() -> None:
    defaults = _defaults(schema())
    jsonschema.Draft202012Validator(schema()).validate(defaults)
    assert parse_config(yaml.safe_dump(defaults).encode(), ".optiml.yml") == Config()


@pytest.mark.parametrize(
    "text", ["budgets: {}", "paths: src", "budget: {total: 300}", "targets: [sm90]", "post: {review: 1}"]
)
def test_schema_and_reader_refuse_the_same(text: str) -> None:
    refused(text)
    assert not jsonschema.Draft202012Validator(schema()).is_valid(yaml.safe_load(text))


def test_every_option_is_documented() -> None:
    page = (ROOT / "docs" / "config.md").read_text()

    def options(cls: Any, prefix: str = "") -> list[str]:
        found = []
        for option in dataclasses.fields(cls):
            table = option.metadata.get("table")
            found += options(table, f"{option.name}.") if table else [prefix + key_of(option)]
        return found

    assert [name for name in options(Config) if f"`{name}`" not in page] == []
    for block in re.findall(r"^```yaml\n(.*?)^```$", page, re.M | re.S):
        assert parse_config(block.encode(), ".optiml.yml") is not None
    assert json.loads(schema_text())["properties"].keys() == {key_of(f) for f in dataclasses.fields(Config)}


def test_a_command_is_read_as_words_and_never_by_a_shell() -> None:
    config = parse_config(b"guardrails: {command: \"./bench 'two words' ; rm -rf $HOME\"}\n", ".optiml.yml")
    assert config is not None
    assert config.guardrails.command == ("./bench", "two words", ";", "rm", "-rf", "$HOME")
