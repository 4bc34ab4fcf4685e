import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.dataset.splitmix import Hasher, Purpose, mix, mix_array

GAMMA = 0x9E3779B97F4A7C15
MASK = 2**64 - 1
# The published sequences: rosettacode.org "Pseudo-random numbers/Splitmix64" for seed 1234567, the widely printed
# first outputs of the reference C code (prng.di.unimi.it/splitmix64.c) for seed 0.
PUBLISHED = {
    0: [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC, 0x1B39896A51A8749B],
    1234567: [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ],
}


@pytest.mark.parametrize("seed", PUBLISHED)
def test_mix_gives_the_published_sequence_when_the_state_advances_by_gamma(seed):
    states = [(seed + k * GAMMA) & MASK for k in range(5)]

    assert [mix(state) for state in states] == PUBLISHED[seed]

    array = np.array(states, np.uint64)
    mix_array(array)
    assert array.tolist() == PUBLISHED[seed]


@given(st.lists(st.integers(0, MASK), max_size=20))
def test_arrays_are_mixed_as_numbers_are(states):
    array = np.array(states, np.uint64)
    mix_array(array)
    assert array.tolist() == [mix(state) for state in states]


def test_arrays_longer_than_one_slice_are_mixed_to_their_end():
    array = np.arange(40_000, dtype=np.uint64)
    mix_array(array)
    assert array.tolist() == [mix(state) for state in range(40_000)]


@given(st.integers(0, MASK), st.sampled_from(Purpose), st.integers(0, MASK), st.integers(0, 2**63 - 1))
def test_a_hash_is_four_nested_mixes_of_seed_purpose_epoch_and_number(seed, purpose, epoch, number):
    hashed = Hasher(seed).hash(purpose, epoch, np.array([number], np.int64))
    assert hashed.tolist() == [mix(mix(mix(mix(seed) ^ purpose) ^ epoch) ^ number)]


def test_a_hasher_counts_what_it_hashed_and_leaves_the_numbers_alone():
    numbers = np.arange(1000)
    hasher = Hasher(3)
    hasher.hash(Purpose.BLOCK, 0, numbers)
    hasher.hash(Purpose.SAMPLE, 0, numbers[:5])
    assert hasher.count == 1005
    assert numbers.tolist() == list(range(1000))


@given(st.integers(0, MASK))
def test_mix_is_one_to_one_because_each_of_its_rounds_can_be_undone(state):
    def unxor(z, shift):
        whole = z
        for _ in range(64 // shift):
            whole = z ^ (whole >> shift)
        return whole

    z = unxor(mix(state), 31)
    z = unxor(z * pow(0x94D049BB133111EB, -1, 2**64) & MASK, 27)
    z = unxor(z * pow(0xBF58476D1CE4E5B9, -1, 2**64) & MASK, 30)
    assert (z - GAMMA) & MASK == state
