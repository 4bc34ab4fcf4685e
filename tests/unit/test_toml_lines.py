"""Every key is found on the line where it stands, whatever stands around it."""

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from stoker.toml_lines import key_lines


def test_keys_and_tables_have_their_lines():
    text = '# first\n\na = 1\n[t]  # a table\nb = 2\n\n  [ t . "u v" ]\n  c.d = 3\n'
    assert key_lines(text) == {
        ("a",): 3,
        ("t",): 4,
        ("t", "b"): 5,
        ("t", "u v"): 7,
        ("t", "u v", "c", "d"): 8,
    }


def test_what_looks_like_a_key_inside_a_value_is_none():
    text = (
        'a = """\nx = 1\n[t]\n\\""" # """ # no = "comment"\n'
        "b = '''\ny = 2'''\n"
        'c = [ # [d]\n  "e = 1", # f = 2\n  { g = "}" },\n]\n'
        'h = "# not a comment" # i = 3\n'
        "j = '\\' # a lone backslash ends nothing\n"
        "k = 4"
    )
    assert list(tomllib.loads(text)) == ["a", "b", "c", "h", "j", "k"]
    assert key_lines(text) == {("a",): 1, ("b",): 5, ("c",): 7, ("h",): 11, ("j",): 12, ("k",): 13}


def test_quotes_at_the_end_of_a_long_string_belong_to_it():
    text = "a = \"\"\"x\"\"\"\"\"\nb = '''y'''''\nc = \"\"\nd = ''\ne = 1\n"
    assert tomllib.loads(text) == {"a": 'x""', "b": "y''", "c": "", "d": "", "e": 1}
    assert list(key_lines(text).values()) == [1, 2, 3, 4, 5]


def test_keys_in_quotes_are_read_as_toml_does():
    text = '"a.b" = 1\n\'c"d\' = 2\n"\\u00e9\\"" = 3\n'
    assert list(key_lines(text)) == [(key,) for key in tomllib.loads(text)]


def test_lines_that_end_as_on_windows_are_counted_once():
    assert key_lines("a = 1\r\n\r\n[t]\r\nb = [\r\n 1 ]\r\nc = 2") == {
        ("a",): 1,
        ("t",): 3,
        ("t", "b"): 4,
        ("t", "c"): 6,
    }


def test_an_array_of_tables_has_the_line_of_its_first():
    assert key_lines("[[t]]\na = 1\n[[t]]\na = 2\n") == {("t",): 1, ("t", "a"): 2}


VALUES = st.sampled_from(
    [
        "1",
        '"x"',
        "'#'",
        '"\\""',
        '"""\n[k]\nz = 1\n"""',
        "'''a\n'''",
        "[]",
        "[\n  1, # ]\n  2\n]",
        '{ a = "}", b = [1] }',
        "1979-05-27T07:32:00Z",
        '[[""], ["]"]]',
        '"" # "',
    ]
)
NOISE = st.sampled_from(["", "\n", "# c = 1\n", "   \n\t\n", "# [t]\n"])


@given(st.lists(st.tuples(st.booleans(), VALUES, NOISE), max_size=8))
def test_any_statements_are_found_where_they_were_put(statements):
    text, expected, table, line = "", {}, (), 1
    for number, (opens, value, noise) in enumerate(statements):
        text += noise
        line += noise.count("\n")
        if opens:
            table = (f"t{number}",)
            expected[table] = line
            text += f"[t{number}] # k = 1\n"
            line += 1
        expected[(*table, f"k{number}")] = line
        text += f"k{number} = {value}\n"
        line += value.count("\n") + 1
    tomllib.loads(text)  # the texts of this test are valid
    assert key_lines(text) == expected
