"""The map is the territory: section 6 of the design and the table of the README name what lies where."""

from __future__ import annotations

import re
import sys
import tomllib

import pytest

ROOM = re.compile(r"^  (\w+)/ +(.*)$")


@pytest.fixture(scope="session")
def blocks(root):
    """The code blocks of section 6 of the design: what stands, and what is to come."""
    text = (root / "docs" / "design.md").read_text()
    section = text[text.index("\n## 6. ") : text.index("\n## 7. ")]
    return re.findall(r"^```\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def listed(block):
    """Room -> its modules, of a block as in the design; '' holds the modules at the top of the package."""
    rooms, current = {"": set()}, ""
    for line in block.split("\n"):
        match = ROOM.match(line)
        if match:
            current = match[1]
            rooms[current] = set()
        elif re.match(r"  \S", line):
            current = ""
        elif not line.startswith("   "):
            continue
        rooms[current] |= set(re.findall(r"\b(\w+)\.py\b", line))
    return rooms


def on_disk(package):
    """The same of the package itself; modules of a room's sub-folders count as the room's."""
    rooms = {"": {p.stem for p in package.glob("*.py")}}
    for folder in sorted(p for p in package.iterdir() if (p / "__init__.py").is_file()):
        rooms[folder.name] = {p.stem for p in folder.rglob("*.py")} - {"__init__"}
    rooms[""] -= {"__init__", "__main__", "_version"}
    return rooms


def test_section_6_names_every_room_and_module_that_stands_and_no_other(root, blocks):
    named, found = listed(blocks[0]), on_disk(root / "src" / "stoker")
    problems = [f"{room}/ is named but not there" for room in sorted(named.keys() - found.keys())]
    problems += [f"{room}/ is there but not named" for room in sorted(found.keys() - named.keys())]
    for room in sorted(named.keys() & found.keys()):
        problems += [f"{room}/{name}.py is named but not there" for name in sorted(named[room] - found[room])]
        problems += [f"{room}/{name}.py is there but not named" for name in sorted(found[room] - named[room])]
    assert not problems, "\n".join(problems)


def test_what_section_6_says_is_to_come_is_not_there_yet(root, blocks):
    found = on_disk(root / "src" / "stoker")
    come = listed(blocks[1])
    assert len(come) > 3
    early = [f"{room}/{name}.py" for room in come for name in sorted(come[room] & found.get(room, set()))]
    early += [f"{room}/" for room in come if room and not come[room] and room in found]
    assert not early, early


def test_the_table_of_the_readme_names_every_room_where_it_is(root):
    named = set(re.findall(r"^\| `(src/stoker/[\w/.]+)` \|", (root / "README.md").read_text(), re.MULTILINE))
    assert [path for path in sorted(named) if not (root / path).exists()] == []
    rooms = {f"src/stoker/{room}/" for room in on_disk(root / "src" / "stoker") if room} | {"src/stoker/run.py"}
    assert sorted(rooms - named) == []


def test_every_folder_with_modules_is_a_package(root):
    package = root / "src" / "stoker"
    bare = [p.parent for p in package.rglob("*.py") if not (p.parent / "__init__.py").is_file()]
    assert sorted({str(p.relative_to(root)) for p in bare}) == []


def test_a_module_that_is_not_named_or_not_there_is_found():
    named = listed(
        "src/stoker/\n  io/           atomic.py (x), memory.py\n                lock.py\n  run.py        Run\n"
    )
    assert named == {"io": {"atomic", "memory", "lock"}, "": {"run"}}


def test_every_library_that_is_imported_is_a_declared_dependency(root, sources):
    import ast

    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = [*project["dependencies"], *extras["torch"], *extras["images"]]
    imported_as = {"pillow": "PIL"}
    names = [re.match(r"[\w-]+", d)[0].replace("-", "_") for d in declared]
    allowed = {imported_as.get(name, name) for name in names} | sys.stdlib_module_names | {"stoker"}
    # The shipped suites are for people who test, and say so.
    allowed_in_testing = allowed | {"pytest"}
    wrong = []
    for source in sources:
        for node in ast.walk(source.tree):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            tops = {n.split(".")[0] for n in names}
            extra = tops - (allowed_in_testing if source.room == "testing" else allowed)
            wrong += [f"{source.name}:{node.lineno}: {name} is not a dependency" for name in sorted(extra)]
    assert not wrong, "\n".join(wrong)


def test_every_dependency_is_used_and_has_its_line_in_the_decisions(root, sources):
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    names = [re.match(r"[\w-]+", d)[0] for d in project["dependencies"]]
    text = "\n".join(s.text for s in sources)
    assert [n for n in names if not re.search(rf"^\s*(?:import|from) {n}\b", text, re.MULTILINE)] == []
    page = (root / "docs" / "decisions" / "0001-dependencies.md").read_text()
    assert [n for n in names if not re.search(rf"^\| .*\b{n}\b", page, re.MULTILINE)] == []
