"""What decides whether a codec is worth its time."""

from itertools import pairwise

import pytest

from gpusnap.datapath.pace import Pace

WRITE = 0.5e-9
"""Seconds a byte into the page cache."""


def pace(disk: float, workers: int = 2) -> Pace:
    made = Pace(disk, workers)
    made.write.note(WRITE, 1)
    return made


@pytest.mark.parametrize(
    ("disk", "ratio", "cost", "pays"),
    [
        (0.0, 0.5, 1e-9, False),  # in memory, a codec slower than writing
        (0.0, 0.5, 0.1e-9, True),  # in memory, one that is faster than what it saves
        (10e-9, 0.8, 1e-9, True),  # a disk of 100 MB/s
        (10e-9, 0.97, 1e-9, False),  # next to nothing saved
        (0.3e-9, 0.7, 1e-9, False),  # a disk of 3 GB/s against a codec of 1 GB/s a thread
        (10e-9, 0.5, 30e-9, False),  # a codec slower than the slow disk
    ],
)
def test_a_codec_pays_where_all_is_on_the_disk_sooner(
    disk: float, ratio: float, cost: float, pays: bool
) -> None:
    assert pace(disk).pays(ratio, cost) is pays


def test_many_threads_make_a_codec_worth_it() -> None:
    assert not pace(0.3e-9, workers=2).pays(0.7, 1e-9)
    assert pace(0.3e-9, workers=16).pays(0.7, 1e-9)


def test_before_anything_was_written_the_disk_decides() -> None:
    assert Pace(10e-9, 2).pays(0.8, 1e-9)
    assert not Pace(0.0, 2).pays(0.8, 1e-9)


def test_what_a_sample_costs_is_taken_for_less_than_all_of_it_does() -> None:
    # In memory, by less than what samples are wrong by.
    assert not pace(0.0).pays(0.7, 0.2 * WRITE)


def test_a_first_write_that_was_held_up_makes_no_codec_worth_it() -> None:
    made = Pace(0.0, 16)
    made.write.note(20 * WRITE, 1)
    assert made.pays(0.6, WRITE)
    made.note_straight(2 * WRITE, 1)
    assert not made.pays(0.6, WRITE)


def test_what_encoding_really_takes_counts() -> None:
    """A sample of one thread tells little of what all take that share a processor's cores."""
    made = pace(0.6e-9, workers=16)
    assert made.pays(0.6, 3e-9)
    for _ in range(10):
        made.encoded(3 * 3e-9 * 1024, 1024, 3e-9)
    assert not made.pays(0.6, 3e-9)
    for _ in range(10):
        made.encoded(3e-9 * 1024, 1024, 3e-9)
    assert made.pays(0.6, 3e-9)
    made.encoded(1.0, 0, 3e-9)  # all of it was stored already


def test_encoding_that_is_cheap_has_to_save_something() -> None:
    made = pace(0.0, workers=16)
    for _ in range(10):
        made.encoded(0.1 * 0.1e-9 * 1024, 1024, 0.1e-9)
    assert not made.pays(0.93, 0.1e-9)
    assert made.pays(0.4, 0.1e-9)


def favour(made: Pace) -> bool:
    return made.favours_writing


def test_a_copy_alone_has_to_be_much_faster_than_all_at_once() -> None:
    made = Pace(0.0, 2)
    for rate, cost in ((made.fresh, 1.0), (made.used, 0.5), (made.write, 0.9)):
        assert favour(made)  # before anything is known to compare it with
        rate.note(cost, 1)
    assert not favour(made)
    made.note_straight(9.0, 1)
    assert not favour(made)
    for _ in range(20):
        made.note_straight(1.1, 1)
    assert favour(made)
    made.note_straight(5.0, 1)  # the disk has become busy
    assert not favour(made)
    for _ in range(9):
        made.write.note(0.5, 1)
    assert favour(made)


def test_what_goes_straight_is_compared_before_anything_else_is_known() -> None:
    made = Pace(0.0, 2)
    made.note_straight(1.1, 1)
    assert favour(made)
    made.fresh.note(1.0, 1)
    assert favour(made)
    for _ in range(9):
        made.note_straight(5.0, 1)
    assert not favour(made)


def tries(made: Pace, buffers: int, *, pays: bool = False) -> list[int]:
    """Which of so many buffers are tried."""
    tried = []
    for number in range(buffers):
        if made.try_is_due():
            tried.append(number)
            made.tried(pays=pays)
    return tried


def test_tries_that_are_in_vain_become_rare_and_do_not_end() -> None:
    tried = tries(pace(0.0), 800)
    assert tried[:6] == [0, 2, 6, 14, 30, 62]
    assert {after - before for before, after in pairwise(tried[5:])} == {32}


def test_after_one_that_pays_each_buffer_is_tried() -> None:
    made = pace(0.0)
    tries(made, 800)
    made.tried(pays=True)
    assert tries(made, 100, pays=True) == list(range(100))


def test_not_all_threads_begin_with_a_try() -> None:
    made = pace(0.0)
    assert [made.try_is_due() for _ in range(16)].count(True) == 4  # none of them has ended yet


def test_threads_that_wait_for_the_disk_try_each_buffer() -> None:
    assert tries(pace(0.3e-9), 100) == list(range(100))
