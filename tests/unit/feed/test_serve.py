from hypothesis import given
from hypothesis import strategies as st

from stoker.feed.serve import are_enough


@given(live_count=st.integers(0, 1000))
def test_few_loans_at_a_time_are_kept_from_the_planner_and_none_where_training_holds_few(live_count):
    kept = 0
    while not are_enough(kept + 1, live_count):
        kept += 1
    assert kept <= min(live_count // 4, 7)
    assert kept == 0 or live_count > 4


def test_of_sixteen_loans_four_come_back_together():
    assert [are_enough(dead, 16) for dead in (1, 2, 3, 4)] == [False, False, False, True]
