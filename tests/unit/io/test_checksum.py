import sys
from types import SimpleNamespace

import pytest

from stoker.io import checksum

CHECK = 0xE3069283  # of "123456789", as the catalogue of CRCs gives it for CRC-32C


def test_crc32c_gives_the_value_that_defines_it():
    assert checksum.crc32c(b"123456789") == CHECK
    assert checksum.crc32c(b"6789", checksum.crc32c(b"12345")) == CHECK
    assert checksum.crc32c_of_view(memoryview(b"123456789")) == CHECK


@pytest.mark.parametrize("case", ["alone", "loaded already", "found by nobody", "without its module"])
def test_the_extension_alone_is_loaded_where_it_is_found_and_else_the_package_around_it(case, monkeypatch):
    import crc32c

    monkeypatch.setitem(sys.modules, "crc32c", crc32c)
    find, searched = checksum.PathFinder.find_spec, []

    def find_spec(name, path=None):
        searched.append(name)
        gone = {"found by nobody": "crc32c", "without its module": "crc32c._crc32c"}.get(case)
        return None if name == gone else find(name, path)

    monkeypatch.setattr(checksum, "PathFinder", SimpleNamespace(find_spec=find_spec))
    if case != "loaded already":
        monkeypatch.delitem(sys.modules, "crc32c")
    module = checksum._load_crc32c()
    assert module.__name__ == ("crc32c._crc32c" if case == "alone" else "crc32c")
    assert (searched == []) is (case == "loaded already")
    assert module.crc32c(b"123456789") == CHECK
