"""The runner's image, its values for Kubernetes and the App's manifest: what can be seen of them without building or registering."""

from __future__ import annotations

import html
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
DIGEST = r"@sha256:[0-9a-f]{64}"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    specification = importlib.util.spec_from_file_location("image_check", ROOT / ".ci" / "image_check.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_image_names_its_bases_by_digest_and_ends_as_an_ordinary_user(check: ModuleType) -> None:
    found = list(check.instructions((DEPLOY / "Dockerfile").read_text()))
    bases = [rest for _, word, rest in found if word == "FROM"]
    assert [bool(re.search(DIGEST, base)) for base in bases] == [True, True]
    assert bases[-1].startswith("nvidia/cuda:13.0.")
    assert [rest for _, word, rest in found if word == "USER"] == ["1001"]
    after = [word for _, word, _ in found][[word for _, word, _ in found].index("USER") :]
    assert "RUN" not in after
    assert {word for _, word, _ in found} <= {
        "FROM",
        "RUN",
        "COPY",
        "USER",
        "WORKDIR",
        "CMD",
    }  # no ADD of an address, no secret


def test_instructions_are_joined_and_keep_the_comment_above(check: ModuleType) -> None:
    text = "# of all\nFROM a\n\n# one\n# two\nRUN a \\\n    && b\n"
    assert list(check.instructions(text)) == [("# of all", "FROM", "a"), ("# two", "RUN", "a && b")]


def test_steps_are_executed_in_order_and_a_failure_ends_it(
    check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[tuple[str, str, str]] = []

    def run(rootfs: Path, command: str, user: str, folder: str, wheels: Path | None) -> int:
        ran.append((command, user, folder))
        return int("useradd" in command and len(ran) > 3)

    monkeypatch.setattr(check, "run", run)
    monkeypatch.setattr("sys.argv", ["image_check", str(tmp_path), "--then", "optiml doctor"])
    assert check.main() == 0
    assert [user for _, user, _ in ran] == ["0", "0", "1001"]
    assert ran[-1] == ("optiml doctor", "1001", "/home/runner")
    out = capsys.readouterr().out
    assert "not executed: FROM nvidia/cuda" in out
    assert "not executed: RUN" in out  # NVIDIA's packages: this root file system does not have their index
    assert check.main() == 1
    assert "failed: RUN useradd" in capsys.readouterr().out


def test_a_pod_of_the_values_has_no_power_over_its_node() -> None:
    values: dict[str, Any] = yaml.safe_load((DEPLOY / "arc-values.yaml").read_text())
    spec = values["template"]["spec"]
    (runner,) = spec["containers"]
    assert (spec["hostUsers"], spec["automountServiceAccountToken"]) == (False, False)
    assert (spec["securityContext"]["runAsNonRoot"], spec["securityContext"]["runAsUser"]) == (True, 1001)
    assert runner["securityContext"]["allowPrivilegeEscalation"] is False
    assert runner["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert runner["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert re.search(DIGEST, runner["image"])
    # What the sandbox needs: its own filter and a /proc that nothing is masked in.
    assert spec["securityContext"]["seccompProfile"] == {"type": "Unconfined"}
    assert runner["securityContext"]["procMount"] == "Unmasked"
    # The chart gives the name `runner` to the container that it starts, and knows these keys.
    assert (runner["name"], runner["command"]) == ("runner", ["/home/runner/run.sh"])
    known = {"githubConfigUrl", "githubConfigSecret", "runnerScaleSetName", "minRunners", "maxRunners", "template"}
    assert set(values) <= known


def test_the_app_has_the_permissions_that_the_workflow_grants() -> None:
    page = (DEPLOY / "app-manifest.html").read_text()
    text = re.search(r"<textarea name=\"manifest\".*?>(.*?)</textarea>", page, re.S)
    assert text
    manifest = json.loads(html.unescape(text[1]))
    asked: dict[str, str] = {}
    for name in ("github-app.yml", "all.yml"):  # the app may post for both
        (caller,) = yaml.safe_load((ROOT / "docs" / "workflows" / name).read_text())["jobs"].values()
        asked |= {scope.replace("-", "_"): level for scope, level in caller["permissions"].items()}
    assert manifest["default_permissions"] == {**asked, "metadata": "read"}
    assert manifest["hook_attributes"]["active"] is False
    assert (manifest["default_events"], manifest["public"]) == ([], False)
