import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stoker.dataset.distinct import distinct


@given(st.lists(st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1), max_size=40))
def test_it_finds_what_numpy_does(values):
    array = np.array(values, np.int64)
    before = array.copy()
    found = distinct(array)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, np.unique(array))
    np.testing.assert_array_equal(array, before)
