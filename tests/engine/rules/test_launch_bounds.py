from tests.engine.rules.test_unroll import LAUNCH, ROWS, SIZES
from tests.engine.rules.workbench import SCALE, SCALE_LAUNCH, compiles, device, make, one, propose


def test_block_is_declared() -> None:
    edited = one(make(ROWS, LAUNCH, **SIZES), "launch_bounds", resident=2)
    assert "__global__ void __launch_bounds__(256, 2) rows(" in device(edited)
    assert edited.kernel.launch_bounds
    compiles(edited)
    assert not propose(edited, "launch_bounds")
    assert not propose(edited, "block_size")


def test_nothing_without_a_loop_or_a_visible_launch() -> None:
    assert not propose(make(SCALE, SCALE_LAUNCH), "launch_bounds")
    assert not propose(make(ROWS, "", **SIZES), "launch_bounds")


def test_the_largest_block_is_assumed_anyway() -> None:
    site = make(ROWS, LAUNCH.replace("255", "1023").replace("256", "1024"), **SIZES)
    assert [p.parameters["resident"] for p in propose(site, "launch_bounds")] == [2]


def test_nothing_beside_another_limit_of_registers() -> None:
    site = make(ROWS.replace("void rows(", "void __maxnreg__(64) rows("), LAUNCH, **SIZES)
    assert site.sound
    assert not propose(site, "launch_bounds")
