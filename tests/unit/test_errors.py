"""Errors are an API: they say what, where and a hint, cross processes, and map to exit codes."""

import errno
import inspect
import pickle

import pytest

from stoker import errors
from stoker.errors import CapacityError, StokerError

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, StokerError)]

# The tree that users catch by: builtin it also is, exit code, whether the same call may succeed later.
EXPECTED = {
    "StokerError": (Exception, 1, False),
    "ConfigError": (ValueError, 2, False),
    "LayoutError": (ValueError, 2, False),
    "StoreError": (Exception, 6, False),
    "NotFound": (FileNotFoundError, 6, False),
    "AlreadyExists": (FileExistsError, 6, False),
    "AccessDenied": (PermissionError, 7, False),
    "Unavailable": (ConnectionError, 6, True),
    "TimedOut": (TimeoutError, 6, True),
    "Throttled": (ConnectionError, 6, True),
    "PreconditionFailed": (Exception, 6, False),
    "IntegrityError": (Exception, 4, False),
    "DigestMismatch": (Exception, 4, False),
    "Truncated": (Exception, 4, False),
    "FormatError": (ValueError, 4, False),
    "NewerFormat": (ValueError, 4, False),
    "CapacityError": (OSError, 5, False),
    "DatasetError": (Exception, 9, False),
    "EmptyDataset": (ValueError, 9, False),
    "SampleError": (Exception, 9, False),
    "SourceChanged": (Exception, 9, False),
    "TooManyBadSamples": (Exception, 9, False),
    "UnknownField": (KeyError, 9, False),
    "CheckpointError": (Exception, 10, False),
    "CheckpointMissing": (LookupError, 10, False),
    "SaveFailed": (Exception, 10, False),
    "Fenced": (Exception, 10, False),
    "RunBusy": (Exception, 10, False),
    "ChildDied": (Exception, 11, False),
    "UnsupportedError": (Exception, 8, False),
    "ClosedError": (Exception, 1, False),
    "InternalError": (Exception, 70, False),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_each_error_is_a_builtin_and_has_an_exit_code(name):
    builtin, exit_code, retryable = EXPECTED[name]
    kind = getattr(errors, name)
    assert issubclass(kind, StokerError)
    assert issubclass(kind, builtin)
    assert (kind.exit_code, kind.retryable) == (exit_code, retryable)


def test_no_error_is_missing_from_the_table_above_or_from_the_tree_in_the_module():
    assert {kind.__name__ for kind in CLASSES} == set(EXPECTED)
    for name in EXPECTED:
        assert name in errors.__doc__


@pytest.mark.parametrize("kind", CLASSES)
def test_each_error_survives_pickling_whole(kind):
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        error = pickle.loads(pickle.dumps(kind("1 of 2 failed: 'x'", "over there", "try this"), protocol))
        assert type(error) is kind
        assert (error.what, error.where, error.hint) == ("1 of 2 failed: 'x'", "over there", "try this")
        assert str(error) == str(kind("1 of 2 failed: 'x'", "over there", "try this"))


@pytest.mark.parametrize("kind", CLASSES)
def test_each_error_prints_as_at_most_three_lines(kind):
    assert str(kind("what")) == "what"
    assert str(kind("what", hint="hint")) == "what\n  hint:  hint"
    assert str(kind("what", "where", "hint")) == "what\n  where: where\n  hint:  hint"


@pytest.mark.parametrize("kind", CLASSES)
def test_each_error_has_a_docstring_of_its_own(kind):
    assert kind.__dict__["__doc__"]


def test_one_exit_code_means_one_kind_of_trouble():
    roots = {kind.exit_code: kind for kind in CLASSES if "exit_code" in kind.__dict__}
    assert len(roots) == sum("exit_code" in kind.__dict__ for kind in CLASSES)
    assert 0 not in roots


def test_a_capacity_error_is_a_full_disk_to_code_that_looks_at_errno():
    error = CapacityError("no space")
    assert error.errno == errno.ENOSPC
    assert pickle.loads(pickle.dumps(error)).errno == errno.ENOSPC


def test_missing_forbidden_and_slow_are_told_apart():
    names = "NotFound AccessDenied TimedOut Unavailable AlreadyExists Throttled PreconditionFailed"
    kinds = [getattr(errors, name) for name in names.split()]
    for kind in kinds:
        assert sum(issubclass(kind, other) for other in kinds) == 1


def test_a_place_is_named_only_where_an_error_names_none():
    with pytest.raises(StokerError) as bare, errors.naming("here"):
        raise errors.EmptyDataset("no sample")
    with pytest.raises(StokerError) as placed, errors.naming("here"):
        raise errors.EmptyDataset("no sample", "there")
    with pytest.raises(StokerError) as other, errors.naming("here", errors.DatasetError):
        raise errors.ConfigError("seed is -1")
    assert (bare.value.where, placed.value.where, other.value.where) == ("here", "there", "")
