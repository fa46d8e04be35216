from hypothesis import given, strategies as st

from frugax.train.loop import Pace

seconds = st.floats(1e-6, 1e3)


@given(st.lists(st.tuples(st.integers(1, 99), seconds), max_size=9), seconds)
def test_at_most_half_of_the_steps_that_fit_are_dispatched_ahead(waits, left_s):
    pace = Pace()
    for steps, took in waits:
        pace.record(steps=steps, seconds=took)
    ahead = pace.steps_ahead(left_s=left_s)
    if not waits:
        assert ahead == 1
        return
    slowest = max(took / steps for steps, took in waits[-5:])
    if ahead == 0:
        assert slowest > left_s
    else:
        assert ahead == 1 or 2 * ahead * slowest <= left_s * (1 + 1e-9)  # rounding
        assert ahead * slowest <= max(slowest, 0.25)
        assert ahead <= 2 * waits[-1][0]
        assert ahead <= pace.steps_ahead(left_s=None)


def test_it_speeds_up_to_a_quarter_of_a_second():
    pace, ahead = Pace(), [1]
    for _ in range(8):
        pace.record(steps=ahead[-1], seconds=0.01 * ahead[-1])
        ahead.append(pace.steps_ahead(left_s=None))
    assert ahead == [1, 2, 4, 8, 16, 25, 25, 25, 25]


def test_without_time_left_zero_steps_are_dispatched():
    assert Pace().steps_ahead(left_s=0.0) == 0


def test_the_usual_pace_is_known_at_the_third_wait_and_forgets_the_first_step():
    pace = Pace()
    for seconds_taken in (9.0, 1.0):
        pace.record(steps=1, seconds=seconds_taken)
        assert pace.usual_s is None
    pace.record(steps=2, seconds=2.0)
    assert pace.usual_s == 1.0
