"""Dispatch code by compute capability, compiled for every device: machine code and launches are those of the verified programs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from engine.compile.nvcc import find_nvcc
from engine.errors import RefusedError
from engine.evaluate.guardrails import LIMITS
from engine.run import device_dispatch_check
from engine.run.device_dispatch import DeviceDispatch, Variant, write_dispatch
from engine.run.device_dispatch_check import DispatchRequest, device_dispatch
from engine.run.end_to_end import NAME
from engine.run.machine import Machine, make_machine
from engine.run.whole_check import BUILT, OTHERS, VERIFIED
from engine.settings.config import Guardrails
from engine.spec.reader import specs_in
from tests.engine.run.test_device_dispatch import FASTER, KERNEL, OTHER, RUN, SPEC, edited, program
from tests.runtime import with_runtime

TEXT = SPEC + KERNEL + OTHER + RUN
# An instruction that ptxas takes from sm_90 on.
CLUSTERS = ("    if (i < n) {", '    asm volatile("barrier.cluster.arrive.aligned;");\n    if (i < n) {')
BLOCKS = ("threads = 256", "threads = 128")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:  # type: ignore[misc]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPTIML_CACHE", str(with_runtime(tmp_path_factory.mktemp("cache"))))
        made = make_machine(device="cpu", arch="sm_90", jobs=1)
    yield made
    made.close()


@pytest.fixture
def no_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_dispatch_check, "find_nvcc", lambda: None)


def request(root: Path, *variants: Variant, text: str = TEXT) -> DispatchRequest:
    original = program(text)
    (root / "k.cu").write_text(text)
    return DispatchRequest(root, specs_in(original, None)[0], None, original, variants)


def hopper(*changes: tuple[str, str], text: str = TEXT) -> Variant:
    return Variant("h200", "sm_90", edited(text, changes))


def ampere(*changes: tuple[str, str], text: str = TEXT) -> Variant:
    return Variant("a100", "sm_80", edited(text, changes))


def test_two_devices_have_the_machine_code_that_was_verified_for_each(
    machine: Machine, tmp_path: Path, no_nvcc: None
) -> None:
    found = device_dispatch(
        request(tmp_path, hopper(BLOCKS, FASTER), ampere(("2.0f * x", "3.0f * x"))), machine, LIMITS
    )
    assert [(b.device, b.kernel) for b in found.branches] == [("h200", "scale_sm90"), ("a100", "scale_sm80")]
    assert found.refused == ""
    assert b"optiml_compiled_for" not in found.program.data
    assert [(g.name, g.verdict) for g in found.guardrails] == [(BUILT, "not checked")]


@pytest.mark.parametrize(
    ("old", "new", "kernel", "arch"),
    [
        ("2.0f * x[i];", "4.0f * x[i];", "scale", "sm_90"),  # the original's own kernel
        ("x[i] + x[i]", "x[i] - x[i]", "scale_sm90", "sm_90"),
        ("        int threads = 128;", "        int threads = 64;", "scale_sm90", "sm_90"),  # only the launch
        ("3.0f * x", "5.0f * x", "scale_sm80", "sm_80"),
    ],
)
def test_code_that_is_not_what_was_verified_is_refused(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_nvcc: None, old: str, new: str, kernel: str, arch: str
) -> None:  # fmt: skip
    def wrong(*given: object) -> DeviceDispatch:
        made = write_dispatch(*given)  # type: ignore[arg-type]
        assert old in made.program.data.decode()
        data = made.program.data.decode().replace(old, new, 1).encode()
        return dataclasses.replace(made, program=made.program.replace({"k.cu": data}))

    monkeypatch.setattr(device_dispatch_check, "write_dispatch", wrong)
    asked = request(tmp_path, hopper(BLOCKS, FASTER), ampere(("2.0f * x", "3.0f * x")))
    with pytest.raises(RefusedError) as caught:
        device_dispatch(asked, machine, LIMITS)
    assert caught.value.what == f"'{kernel}' differs from the verified machine code and launch for {arch}"


def test_a_kernel_that_needs_a_newer_device_is_left_out_of_older_builds(
    machine: Machine, tmp_path: Path, no_nvcc: None
) -> None:
    found = device_dispatch(request(tmp_path, hopper(CLUSTERS), ampere(BLOCKS)), machine, LIMITS)
    text = found.program.data.decode()
    assert "if (optiml_capability_scale() == 90 && optiml_compiled_for_scale(scale_sm90, 90)) {" in text
    assert "} else if (optiml_capability_scale() == 80) {" in text
    assert text.count("__CUDA_ARCH__ >=") == 1


def test_so_it_is_for_a_target_of_the_settings_and_for_a_device_without_a_suggestion(
    machine: Machine, tmp_path: Path, no_nvcc: None
) -> None:
    asked = request(tmp_path, hopper(CLUSTERS), Variant("a100", "sm_80", None))
    assert b"optiml_compiled_for_scale(scale_sm90, 90)" in device_dispatch(asked, machine, LIMITS).program.data
    alone = request(tmp_path, hopper(CLUSTERS))
    assert b"optiml_compiled_for" not in device_dispatch(alone, machine, LIMITS).program.data
    assert b"optiml_compiled_for" in device_dispatch(alone, machine, LIMITS, ["sm_86"]).program.data


def test_a_kernel_that_compiles_on_no_newer_device_either_is_refused(
    machine: Machine, tmp_path: Path, no_nvcc: None
) -> None:
    old = ("    if (i < n) {", "#if __CUDA_ARCH__ >= 900\n#error too new\n#endif\n    if (i < n) {")
    with pytest.raises(RefusedError, match="the kernel scale_sm80 does not compile for every device"):
        device_dispatch(request(tmp_path, hopper(FASTER), ampere(old)), machine, LIMITS)


def test_a_kernel_with_line_numbers_in_its_code_is_refused(machine: Machine, tmp_path: Path, no_nvcc: None) -> None:
    text = "#include <cassert>\n" + TEXT.replace("    if (i < n) {", "    assert(n > 0);\n    if (i < n) {", 1)
    with pytest.raises(RefusedError, match="'scale_sm90' differs from the verified machine code"):
        device_dispatch(request(tmp_path, hopper(FASTER, text=text), text=text), machine, LIMITS)


@pytest.mark.slow
@pytest.mark.skipif(find_nvcc() is None, reason="there is no nvcc")
def test_the_whole_file_is_built_for_each_device(machine: Machine, tmp_path: Path) -> None:
    found = device_dispatch(request(tmp_path, hopper(CLUSTERS, BLOCKS), ampere(FASTER)), machine, LIMITS)
    assert found.refused == ""
    assert [(g.name, g.verdict) for g in found.guardrails] == [(n, "passed") for n in (BUILT, OTHERS, VERIFIED)]


@pytest.mark.skipif(find_nvcc() is None, reason="there is no nvcc")
def test_host_code_that_does_not_build_is_no_suggestion(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*given: object) -> DeviceDispatch:
        made = write_dispatch(*given)  # type: ignore[arg-type]
        data = made.program.data.replace(b"    return 10 * major + minor;", b"    return 10 * majors;")
        return dataclasses.replace(made, program=made.program.replace({"k.cu": data}))

    monkeypatch.setattr(device_dispatch_check, "write_dispatch", wrong)
    found = device_dispatch(request(tmp_path, hopper(FASTER)), machine, LIMITS)
    assert found.refused.startswith(f"{BUILT}: k.cu for sm_90: ")
    assert "majors" in found.refused


def test_the_users_command_decides(machine: Machine, tmp_path: Path, no_nvcc: None) -> None:
    (tmp_path / "bench").write_text("#!/bin/sh\n! grep -q scale_sm90 k.cu\n")
    (tmp_path / "bench").chmod(0o755)
    limits = Guardrails(command=("./bench",))
    found = device_dispatch(request(tmp_path, hopper(FASTER)), machine, limits)
    assert found.refused.startswith(f"{NAME}: ends with exit code 1")
