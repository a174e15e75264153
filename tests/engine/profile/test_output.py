"""The profiler's text. The samples follow its documented layouts; none was recorded from a real run."""

from engine.model import LaunchConfig
from engine.profile.output import complaint, parse

LAUNCH = LaunchConfig((4, 1, 1), (256, 1, 1))

LONG = """==PROF== Connected to process 12 (/usr/bin/python3)
==PROF== Profiling "k(float *)" - 0: 0%....50%....100% - 13 passes
==PROF== Disconnected from process 12
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"0","12","python3","127.0.0.1","_Z1kPf","1","7","(256, 1, 1)","(4, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes.sum","byte","12,345,678"
"0","12","python3","127.0.0.1","_Z1kPf","1","7","(256, 1, 1)","(4, 1, 1)","0","9.0","Command line profiler metrics","gpu__time_duration.sum","ns","1,507.50"
"0","12","python3","127.0.0.1","_Z1kPf","1","7","(256, 1, 1)","(4, 1, 1)","0","9.0","Command line profiler metrics","l1tex__t_sector_hit_rate.pct","%","n/a"
"""  # noqa: E501

WIDE = """==PROF== Connected to process 12
"ID","Process ID","Kernel Name","Block Size","Grid Size","dram__bytes.sum","gpu__time_duration.sum","inst_executed"
"","","","","","byte","nsecond","inst"
"1","12","_Z1kPf","(256, 1, 1)","(4, 1, 1)","64","2000","12 (0x7f0010: 8; 0x7f0020: 4)"
"0","12","_Z1kPf","(256, 1, 1)","(2, 1, 1)","32","1000","n/a"
"""


def test_one_line_for_each_counter():
    (row,) = parse(LONG)
    assert row.is_of("_Z1kPf", LAUNCH)
    assert not row.is_of("_Z1kPf", LaunchConfig((5, 1, 1), (256, 1, 1)))
    assert row.passes == 13
    assert row.counters["dram__bytes.sum"].value == 12_345_678
    assert row.counters["gpu__time_duration.sum"].value == 1507.5
    assert row.counters["gpu__time_duration.sum"].unit == "ns"
    assert "l1tex__t_sector_hit_rate.pct" not in row.counters


def test_one_line_for_each_launch_in_the_order_of_launches():
    first, second = parse(WIDE)
    assert first.grid == (2, 1, 1)
    assert second.counters["gpu__time_duration.sum"].value == 2000
    assert second.counters["gpu__time_duration.sum"].unit == "nsecond"
    assert second.counters["inst_executed"].instances == {0x7F0010: 8, 0x7F0020: 4}
    assert "inst_executed" not in first.counters


def test_text_that_is_no_report_gives_nothing():
    for text in (
        "",
        "==ERROR== no\n",
        '"Kernel Name"\n',
        '"ID","Kernel Name"\n"x","k"\n',
        "\0" * 100,
        '"ID","Kernel Name\n',
    ):
        assert parse(text) == []


def test_a_report_cut_off_in_the_middle_keeps_what_came_before():
    cut = WIDE[: WIDE.index('"0","12"') + 20]
    assert [row.id for row in parse(cut)] == [1]


def test_a_hostile_kernel_name_stays_data():
    text = WIDE.replace("_Z1kPf", '=cmd|""quoted"",\x1b[31m')
    assert all(row.kernel.startswith('=cmd|"quoted",') for row in parse(text))


def test_a_field_of_a_megabyte_is_read():
    instances = "; ".join(f"0x{i:x}: 1" for i in range(0, 16 * 60_000, 16))
    text = WIDE.replace("12 (0x7f0010: 8; 0x7f0020: 4)", f"60000 ({instances})")
    assert len(parse(text)[1].counters["inst_executed"].instances) == 60_000


def test_refused_permission():
    found = complaint("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n", ())
    assert found is not None
    assert found.kind == "permission"
    assert "NVreg_RestrictProfilingToAdminUsers=0" in found.reason


def test_an_unknown_metric_is_named_in_either_wording():
    asked = ("a__b.sum", "c__d.sum", "c__d.avg")
    for text, dropped in (
        ("==ERROR== Failed to find metric a__b.sum\n", {"a__b.sum"}),
        ("==ERROR== Failed to find metric regex:^c__d\\.(sum|min|max|avg|pct)$\n", {"c__d.sum", "c__d.avg"}),
    ):
        found = complaint(text, asked)
        assert found is not None
        assert (found.kind, found.metrics) == ("missing", dropped)


def test_other_errors_are_told_in_the_profilers_words():
    found = complaint("==PROF== x\n==ERROR== Unknown error on device 0.\n", ())
    assert found is not None
    assert (found.kind, found.reason) == ("lost", "the profiler failed: Unknown error on device 0.")
    assert complaint("==PROF== x\n==WARNING== y\n", ()) is None
