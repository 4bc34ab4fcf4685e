"""No test stands where pytest does not look."""

from fnmatch import fnmatch
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_no_directory_with_tests_is_passed_over(request):
    patterns = request.config.getini("norecursedirs")
    folders = {parent.name for file in TESTS.rglob("test_*.py") for parent in file.relative_to(TESTS).parents} - {""}
    assert "dist" in folders
    assert not [folder for folder in folders if any(fnmatch(folder, pattern) for pattern in patterns)]
