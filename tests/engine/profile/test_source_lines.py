"""Source lines of counters. The listing follows nvdisasm's layout with line information, inlined places included."""

from dataclasses import replace

from engine.model import LaunchConfig
from engine.profile.counters import SITE_EXECUTED, SITE_IDEAL, SITE_SECTORS, Counter, StepProfile
from engine.profile.source_lines import SourceLines, SourceSite, lines_of, sites, source_lines, worst_site

LISTING = """
	.section	.text._Z5otherPf,"ax",@progbits
.text._Z5otherPf:
	//## File "/tmp/src/k.cu", line 99
        /*0000*/                   MOV R1, c[0x0][0x28] ;
	.section	.text._Z1kPf,"ax",@progbits
	.sectioninfo	@"SHI_REGISTERS=10"
.text._Z1kPf:
	//## File "/tmp/src/k.cu", line 10
        /*0000*/                   MOV R1, c[0x0][0x28] ;
                                                                                  /* 0x00000a00ff017624 */
	//## File "/tmp/src/k.cu", line 12
        /*0010*/                   LDG.E R4, [R2.64] ;
	//## File "/usr/include/helper.h", line 5 inlined at "/tmp/src/k.cu", line 14
	//## File "/tmp/src/k.cu", line 14
        /*0020*/                   LDG.E R5, [R6.64] ;
	//## File "/usr/include/helper.h", line 6
        /*0030*/                   LDG.E R5, [R6.64] ;
	.section	.debug_line
"""
BASE = 0x7F00_1000


def counter(*instances: float) -> Counter:
    return Counter(sum(instances), "", {BASE + 16 * i: v for i, v in enumerate(instances)})


STEP = StepProfile(
    "_Z1kPf", LaunchConfig((1, 1, 1), (32, 1, 1)),
    {SITE_EXECUTED: counter(10, 10, 10, 10), SITE_SECTORS: counter(0, 320, 40, 900), SITE_IDEAL: counter(0, 40, 40, 1)},
)  # fmt: skip


def test_an_instruction_belongs_to_the_line_of_the_file_it_was_inlined_into():
    assert lines_of(LISTING, "_Z1kPf", "src/k.cu") == {0x0: 10, 0x10: 12, 0x20: 14}
    assert lines_of(LISTING, "_Z5otherPf", "src/k.cu") == {0: 99}
    assert lines_of(LISTING, "_Z1kPf", "src/other.cu") == {}


def test_sectors_by_line():
    assert sites(STEP, LISTING, "src/k.cu") == [SourceSite(12, 320, 40, 10), SourceSite(14, 40, 40, 10)]


def test_the_worst_line_wastes_most():
    assert worst_site(STEP, LISTING, "src/k.cu") == SourceSite(12, 320, 40, 10)
    even = replace(STEP, counters={**STEP.counters, SITE_SECTORS: counter(0, 40, 40, 1)})
    assert worst_site(even, LISTING, "src/k.cu") is None


def test_the_line_that_executes_most():
    busy = replace(STEP, counters={**STEP.counters, SITE_EXECUTED: counter(10, 60, 10, 20)})
    found = source_lines(busy, LISTING, "src/k.cu")
    assert (found.worst, found.hottest, found.share) == (SourceSite(12, 320, 40, 60), 12, 0.6)
    unknown = source_lines(busy, "", "src/k.cu")
    assert (unknown.worst, unknown.hottest, unknown.share) == (None, None, 0.0)
    assert source_lines(replace(STEP, counters={}), LISTING, "src/k.cu") == SourceLines()


def test_without_counts_or_lines_there_is_no_site():
    assert worst_site(replace(STEP, counters={}), LISTING, "src/k.cu") is None
    assert worst_site(STEP, "", "src/k.cu") is None
    assert worst_site(replace(STEP, kernel="_Z4nonePf"), LISTING, "src/k.cu") is None


def test_the_lines_of_real_machine_code(tmp_path):
    from engine.compile.compiler import Translation
    from engine.compile.cubin import disassemble
    from engine.compile.nvrtc import NvrtcCompiler
    from engine.process.sandbox import available, sandbox

    box = sandbox(unsafe=not available()[0])
    text = 'extern "C" __global__ void k(const float* x, float* y) {\n  int i = threadIdx.x;\n  y[i] = x[i * 32];\n}\n'
    compiler = NvrtcCompiler("sm_90", cache=tmp_path, sandbox=box, jobs=1)
    try:
        binary = compiler.compile(Translation(text=text, path="src/k.cu", expressions=(), line_info=True))
    finally:
        compiler.close()
    listing = disassemble(binary.cubin, sandbox=box, line_info=True)
    found = lines_of(listing, "k", "src/k.cu")
    loads = [int(row.split("*/")[0].strip(" /*\t"), 16) for row in listing.splitlines() if "LDG" in row]
    assert [found[offset] for offset in loads] == [3]
