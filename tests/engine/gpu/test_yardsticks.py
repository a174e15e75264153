"""The times of what candidates are timed beside."""

from engine.gpu.yardsticks import Yardsticks


class Program:
    pass


def test_a_program_in_the_memory_of_one_that_is_gone_does_not_have_its_time():
    """Known by its address, a new incumbent could pass for the one before it: candidates were given up beside that one's time."""
    known, first = Yardsticks(), Program()
    address = id(first)
    assert known.of(0, first, lambda: [10.0]) == [10.0]
    del first
    others = [Program() for _ in range(1000)]
    again = next((program for program in others if id(program) == address), others[0])
    assert known.of(0, again, lambda: [20.0]) == [20.0]


def test_a_program_is_measured_once_for_each_case_as_long_as_it_is_one_of_the_last():
    known, first, others = Yardsticks(), Program(), [Program() for _ in range(8)]
    assert known.of(0, first, lambda: [10.0]) == [10.0]
    assert known.of(1, first, lambda: [12.0]) == [12.0]
    for other in others:  # a yardstick stays, however many are timed beside it
        assert known.kept(0, other) is None
        known.keep(0, other, [20.0])
        assert known.of(0, first, lambda: [11.0]) == [10.0]
    assert known.kept(0, others[-1]) == [20.0]
    assert known.kept(0, others[0]) is None
    for other in others:
        known.keep(0, other, [21.0])
    assert known.of(0, first, lambda: [13.0]) == [13.0]
    assert known.of(1, first, lambda: [14.0]) == [12.0]
