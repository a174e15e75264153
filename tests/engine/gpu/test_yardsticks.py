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


def test_a_yardstick_is_measured_once_for_each_case_as_long_as_it_is_the_last():
    known, first, second = Yardsticks(), Program(), Program()
    assert known.of(0, first, lambda: [10.0]) == [10.0]
    assert known.of(0, first, lambda: [11.0]) == [10.0]
    assert known.of(1, first, lambda: [12.0]) == [12.0]
    assert known.of(0, second, lambda: [13.0]) == [13.0]
    assert known.of(0, first, lambda: [14.0]) == [14.0]
    assert known.of(1, first, lambda: [15.0]) == [12.0]
