"""Dispatch code by compute capability: what is written for several shapes of host code, and what is refused."""

from __future__ import annotations

import re

import pytest

from engine.cuda.parse import parse
from engine.errors import RefusedError
from engine.model import Program
from engine.run.device_dispatch import DO, Variant, write_dispatch
from engine.spec.reader import specs_in

SPEC = """// optiml: args.x = { role = "in", size = "n" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 903 }]
// optiml: time = [{ n = 1048576 }]
"""
KERNEL = """__global__ void scale(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = 2.0f * x[i];
    }
}
"""
RUN = """
void run(const float* x, float* y, int n) {
    int threads = 256;
    int blocks = (n + threads - 1) / threads;
    scale<<<blocks, threads>>>(x, y, n);
}
"""
FASTER = ("2.0f * x[i]", "x[i] + x[i]")
SAME = ("", "")


def program(text: str, **files: str) -> Program:
    return Program({"k.cu": text.encode(), **{n.replace("_", "."): t.encode() for n, t in files.items()}}, "k.cu")


def dispatched(text, *changes, more=(), files=None):
    """The text with dispatch code for sm_90, whose variant has these replacements; `more` are further variants."""
    original = program(text, **(files or {}))
    variants = [Variant("h200", "sm_90", edited(text, changes, files)), *more]
    return write_dispatch(original, specs_in(original, None)[0], variants)


def edited(text, changes, files=None):
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return program(text, **(files or {}))


def written(text, *changes, more=()):
    return dispatched(text, *changes, more=more).program.data.decode()


def refused(text, *changes, more=(), files=None):
    with pytest.raises(RefusedError) as caught:
        dispatched(text, *changes, more=more, files=files)
    assert caught.value.do == DO
    return caught.value


def test_a_launch_selects_the_kernel_of_its_device_and_the_original_elsewhere():
    text = SPEC + KERNEL + RUN
    ada = Variant("l4", "sm_89", edited(text, [("threads = 256", "threads = 128")]))
    made = dispatched(text, FASTER, more=[ada])
    new = made.program.data.decode()
    assert made.kernels == {90: "scale_sm90", 89: "scale_sm89"}
    assert new.startswith(SPEC + KERNEL)  # the original's text stays, at its lines
    assert KERNEL.replace("scale(", "scale_sm90(").replace(*FASTER) in new
    assert KERNEL.replace("scale(", "scale_sm89(") in new
    assert (
        """    int threads = 256;
    int blocks = (n + threads - 1) / threads;
    if (optiml_capability() == 90) {
        scale_sm90<<<blocks, threads>>>(x, y, n);
    } else if (optiml_capability() == 89) {
        int threads = 128;
        int blocks = (n + threads - 1) / threads;
        scale_sm89<<<blocks, threads>>>(x, y, n);
    } else {
        scale<<<blocks, threads>>>(x, y, n);
    }
}
"""
        in new
    )
    for word in ("cudaGetDevice(", "cudaDevAttrComputeCapabilityMajor", "cudaDevAttrComputeCapabilityMinor"):
        assert new.count(word) == 1
    assert not parse(made.program.data, "k.cu").errors
    assert specs_in(made.program, None)[0].kernel == "scale"


def test_one_device_has_a_suggestion_and_the_other_none():
    made = dispatched(SPEC + KERNEL + RUN, FASTER, more=[Variant("l4", "sm_89", None)])
    assert made.kernels == {90: "scale_sm90"}
    assert "sm89" not in made.program.data.decode()


def test_every_launch_selects():
    text = (
        SPEC
        + KERNEL
        + RUN
        + RUN.replace("run(", "again(").replace("    scale<", "    if (n > 0) {\n        scale<")
        + "}\n"
    )
    new = written(text, ("threads>>>", "threads, 0>>>"), FASTER)
    assert new.count("scale_sm90<<<blocks, threads, 0>>>") == new.count("scale<<<blocks, threads>>>") == 2
    assert "        if (optiml_capability() == 90) {\n            scale_sm90<<<" in new


def test_only_the_declarations_that_a_launch_needs_stand_before_it():
    run = RUN.replace("    int threads", "    int other = 3;\n    int threads")
    text = SPEC + KERNEL + run + RUN.replace("run(", "again(")
    new = written(text, ("blocks = (n + threads - 1)", "blocks = (n + 2 * threads - 1)"))
    assert new.count("        int blocks = (n + 2 * threads - 1) / threads;\n        scale_sm90") == 2
    assert new.count("int threads = 256") == 2
    assert "        int other" not in new


def test_a_loop_that_halves_its_size_after_the_launch_is_none_of_its_business():
    loop = """
void run(const float* x, float* y, int n) {
    while (n > 1) {
        int blocks = (n + 255) / 256;
        scale<<<blocks, 256>>>(x, y, n);
        n /= 2;
    }
}
"""
    assert "int blocks = (n + 127) / 256;\n            scale_sm90" in written(
        SPEC + KERNEL + loop, ("n + 255", "n + 127")
    )
    head, blocks = "    while (n > 1) {\n", "        int blocks = (n + 255) / 256;\n"
    outside = loop.replace(head + blocks, blocks + head)
    error = refused(SPEC + KERNEL + outside, ("n + 255", "n + 127"))
    assert (error.what, error.where) == ("'n' may change after 'blocks' is computed", "k.cu:16")


def test_what_a_variant_adds_or_changes_at_file_scope_comes_along_under_its_own_name():
    constants = "#define BLOCK 256\nconstexpr int ITEMS = 1, PER_BLOCK = BLOCK * ITEMS;\n"
    kernel = KERNEL.replace("blockDim.x", "PER_BLOCK")
    run = RUN.replace("int threads = 256", "int threads = BLOCK").replace("/ threads", "/ PER_BLOCK")
    helper = "__device__ float twice(float v) {\n    return v + v;  // twice the value\n}\n"
    text = constants + SPEC + kernel + run
    new = written(text, ("BLOCK 256", "BLOCK 128"), ("2.0f * x[i]", "twice(x[i])"), (SPEC, helper + SPEC))
    assert "#define BLOCK_sm90 128\n" in new
    assert "constexpr int ITEMS_sm90 = 1, PER_BLOCK_sm90 = BLOCK_sm90 * ITEMS_sm90;" in new
    assert "float twice_sm90(float v) {\n    return v + v;  // twice the value" in new
    assert "blockIdx.x * PER_BLOCK_sm90 + threadIdx.x" in new
    assert "y[i] = twice_sm90(x[i]);" in new
    assert (
        "        int threads = BLOCK_sm90;\n        int blocks = (n + threads - 1) / PER_BLOCK_sm90;\n        scale_sm90"
        in new
    )
    assert new.startswith(text[: text.index(RUN[:10])])


def test_names_that_are_taken_are_not_used():
    text = "int scale_sm90, optiml_capability;\n" + SPEC + KERNEL + RUN
    made = dispatched(text, FASTER)
    assert made.kernels == {90: "scale_sm90_2"}
    assert "if (optiml_capability_2() == 90) {\n        scale_sm90_2<<<" in made.program.data.decode()


def test_members_locals_and_strings_keep_their_names():
    helper = "__device__ float y(float v) { return v + v; }\n"
    run = RUN.replace("int n)", "Sizes sizes)").replace("y, n)", "y, sizes.scale)").replace("(n +", "(sizes.scale +")
    text = "struct Sizes { int scale; };\n" + SPEC + KERNEL + run
    new = written(text, ("2.0f * x[i]", "/* scale */ (2.0f * x[i])"))
    assert "scale_sm90<<<blocks, threads>>>(x, y, sizes.scale);" in new
    assert "/* scale */" in new
    assert "scale_sm90<<<blocks, threads>>>(x, y, n);" in written(SPEC + KERNEL + RUN, (SPEC, helper + SPEC), FASTER)


def test_dynamic_shared_memory_of_another_type_has_another_name():
    kernel = KERNEL.replace("    int i", "    extern __shared__ float held[];\n    int i")
    run = RUN.replace("threads>>>", "threads, held>>>").replace("int threads", "int held = 64;\n    int threads")
    new = written(SPEC + kernel + run, ("__shared__ float held", "__shared__ double held"))
    assert "extern __shared__ double held_sm90[];" in new
    assert "scale_sm90<<<blocks, threads, held>>>" in new
    assert "held_sm90" not in written(SPEC + kernel + run, FASTER)


def test_a_template_is_launched_with_its_arguments():
    spec = SPEC.replace("// optiml: check", '// optiml: kernel = "scale<float, 2>"\n// optiml: check')
    kernel = "template <typename T, int FACTOR>\n" + KERNEL.replace("float", "T").replace("2.0f", "T(FACTOR)")
    run = RUN.replace("scale<<<", "scale<float, 2><<<")
    new = written(spec + kernel + run, ("T(FACTOR) * x[i]", "x[i] * T(FACTOR)"))
    assert "template <typename T, int FACTOR>\n__global__ void scale_sm90(const T* x" in new
    assert "scale_sm90<float, 2><<<blocks, threads>>>(x, y, n);" in new


def test_a_kernel_in_a_namespace_is_copied_there_and_the_capability_asked_outside():
    text = SPEC.replace("// optiml: check", '// optiml: kernel = "app::scale"\n// optiml: check')
    run = RUN.replace("scale<<<", "app::scale<<<")
    text = "#include <cuda_runtime.h>\nnamespace app {\n" + text + KERNEL + "}  // namespace app\n" + run
    made = dispatched(text, FASTER)
    new = made.program.data.decode()
    assert made.kernels == {90: "app::scale_sm90"}
    assert new.index("int optiml_capability()") < new.index("namespace app {") < new.index("void scale_sm90(")
    assert new.index("void scale_sm90(") < new.index("}  // namespace app")
    assert "app::scale_sm90<<<blocks, threads>>>(x, y, n);" in new


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_windows_lines_and_characters_stay(mark):
    text = "// größer\n" + SPEC + KERNEL + RUN
    original, variant = (
        Program({"k.cu": mark + p.data.replace(b"\n", b"\r\n")}, "k.cu")
        for p in (program(text), edited(text, [FASTER]))
    )
    made = write_dispatch(original, specs_in(original, None)[0], [Variant("h200", "sm_90", variant)])
    data = made.program.data
    assert data.startswith(mark + "// größer\r\n".encode())
    assert data.count(b"\n") == data.count(b"\r\n")
    assert written(text, FASTER).encode().replace(b"\n", b"\r\n") == data.removeprefix(mark)


def test_a_header_that_the_variant_includes_is_included():
    text = "#include <cuda_runtime.h>\n" + SPEC + KERNEL + RUN
    new = written(text, ("#include <cuda_runtime.h>", "#include <cuda_runtime.h>\n#include <cuda_fp16.h>"), FASTER)
    assert new.startswith("#include <cuda_fp16.h>\n#include <cuda_runtime.h>\n")


OTHER = "__global__ void other(float* y) {\n    y[0] = 1.0f;\n}\n"
SECOND = "void more(float* y) {\n    y[1] = 1.0f;\n}\n"


@pytest.mark.parametrize(
    ("text", "changes", "what", "where"),
    [
        (SPEC + KERNEL + OTHER + RUN, [FASTER, ("y[0] = 1.0f", "y[0] = 2.0f")],
         "the suggestion for h200 changes more than the kernel and its launches: 'other'", "k.cu:11"),
        (SPEC + KERNEL + SECOND + RUN, [FASTER, ("y[1]", "y[2]")], "the suggestion for h200 changes the host code of 'more'", "k.cu:11"),
        (SPEC + KERNEL + RUN, [FASTER, ("(x, y, n);\n}", "(x, y, n);\n    cudaDeviceSynchronize();\n}")],
         "the suggestion for h200 changes the host code of 'run'", "k.cu:12"),
        (SPEC + KERNEL + RUN, [FASTER, (SPEC, "namespace app {}\n" + SPEC)],
         "the suggestion for h200 changes more than the kernel and its launches: 'app'", "k.cu:1"),
        ("int shared[2];\n" + SPEC + KERNEL + RUN, [FASTER, ("shared[2]", "shared[3]")],
         "the suggestion for h200 changes more than the kernel and its launches: 'shared'", "k.cu:1"),
        ("#define N 2\n__device__ float table[N];\n" + SPEC + KERNEL.replace("2.0f", "table[0]") + RUN, [("N 2", "N 3")],
         "the suggestion for h200 changes what 'table' depends on", "k.cu:2"),
        ("#define N 256\n" + SPEC + KERNEL + RUN.replace("256;", "N;") + SECOND.replace("y[1]", "y[N]"), [FASTER, ("N 256", "N 128")],
         "the suggestion for h200 changes 'N', which other host code uses", "k.cu:18"),
        ("#if 1\n#define N 2\n#endif\n" + SPEC + KERNEL.replace("2.0f", "N") + RUN, [("N 2", "N 3")],
         "the suggestion for h200 changes what stands under an #if", "k.cu:2"),
        (SPEC + KERNEL + RUN.replace("    scale<", "    if (n > 0) scale<"), [FASTER], "the launch is not a separate statement", "k.cu:15"),
        (SPEC + KERNEL.replace(" {", ";", 1).split(";")[0] + ";\n" + RUN + KERNEL, [FASTER],
         "'scale' is launched before its definition", "k.cu:10"),
        (SPEC + KERNEL, [FASTER], "no launch of 'scale' was found in host code", "k.cu:1"),
        (SPEC + KERNEL + RUN + RUN.replace("run", "again"), [(RUN.replace("run", "again"), ""), FASTER],
         "the suggestion for h200 has 1 instead of 2 launches of 'scale'", "k.cu:5"),
        (SPEC + KERNEL + RUN + "const void* held() {\n    return (const void*)scale;\n}\n", [FASTER],
         "'scale' may be launched in a way that cannot be analysed", "k.cu:18"),
        (SPEC + "#ifdef FAST\n" + KERNEL + "#else\n" + KERNEL + "#endif\n" + RUN, [FASTER],
         "the file has 2 definitions of 'scale' in the original", "k.cu"),
        (SPEC + KERNEL + RUN.replace("    int threads = 256;", "#if 1\n    int threads = 256;\n#else\n    int threads = 64;\n#endif"),
         [FASTER, ("threads = 64", "threads = 32")], "the suggestion for h200 changes the host code of 'run'", "k.cu:12"),
        ("#define N 2\n#if N > 1\n#endif\n" + SPEC + KERNEL.replace("2.0f", "N") + RUN, [("N 2", "N 3")],
         "the suggestion for h200 changes what '#if' depends on", "k.cu:2"),
        ("#define N 256\n" + SPEC + KERNEL + RUN.replace("= 256;", "= N;").replace("    scale<", "    cudaMalloc(&p, blocks);\n    scale<"),
         [FASTER, ("N 256", "N 128")], "the suggestion for h200 changes 'N', which other host code uses", "k.cu:13"),
        (SPEC + KERNEL + "struct Runner {\n" + RUN + "};\n", [FASTER], "the launch is not in a function at file scope", "k.cu:16"),
    ],
)  # fmt: skip
def test_what_cannot_be_dispatched_is_refused_by_name(text, changes, what, where):
    error = refused(text, *changes)
    assert (error.what, error.where) == (what, where)


def test_two_devices_of_one_capability_cannot_be_distinguished():
    text = SPEC + KERNEL + RUN
    for other in (edited(text, [("threads = 256", "threads = 128")]), None):
        error = refused(text, FASTER, more=[Variant("h100", "sm_90a", other)])
        assert error.what == "h200 and h100 have the same compute capability (9.0)"


def test_files_beside_the_kernels_own_are_refused_by_name():
    launch = "__global__ void scale(const float* x, float* y, int n);\n" + RUN.replace("run(", "again(")
    error = refused(SPEC + KERNEL + RUN, FASTER, files={"m_cu": launch})
    assert (error.what, error.where) == ("'scale' is launched in another file", "m.cu:6")
    text = '#include "f.cuh"\n' + SPEC + KERNEL + RUN
    original, variant = (
        program(text, f_cuh="constexpr int N = 1;\n"),
        edited(text, [FASTER], {"f_cuh": "constexpr int N = 2;\n"}),
    )
    with pytest.raises(RefusedError, match=r"f\.cuh: the suggestion for h200 changes another file"):
        write_dispatch(original, specs_in(original, None)[0], [Variant("h200", "sm_90", variant)])


def test_a_chain_of_kernels_is_refused():
    text = SPEC + KERNEL + RUN
    spec = specs_in(program(text), None)[0]
    chain = type(spec)(**{**vars(spec), "steps": (spec.steps[0], spec.steps[0])})
    with pytest.raises(RefusedError, match="the spec is a chain of kernels"):
        write_dispatch(program(text), chain, [Variant("h200", "sm_90", edited(text, [FASTER]))])


def test_a_guarded_copy_has_no_body_in_older_builds_which_use_the_original():
    text = SPEC + KERNEL + RUN
    original = program(text)
    helper = "__device__ float twice(float v) { return v + v; }\n"
    variant = Variant("h200", "sm_90", edited(text, [("2.0f * x[i]", "twice(x[i])"), (SPEC, helper + SPEC)]))
    new = write_dispatch(original, specs_in(original, None)[0], [variant], {90}).program.data.decode()
    guard = "#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900\n"
    assert f"{guard}__device__ float twice_sm90(float v) {{ return v + v; }}\n#endif\n" in new
    assert re.search(r"void scale_sm90\(.*\) \{\n" + re.escape(guard) + r"    int i = .*\n(?:.*\n)*?#endif\n\}\n", new)
    assert "if (optiml_capability() == 90 && optiml_compiled_for(scale_sm90, 90)) {" in new
    assert new.count("found.ptxVersion >= architecture") == 1
