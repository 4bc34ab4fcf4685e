"""The page of the Python API has every public name, with the signature and the words of the source."""

from __future__ import annotations

import builtins
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
import types

import pytest

from stoker import errors

PAGE = "docs/reference/python.md"

# Modules whose public names (`__all__`) have a section each.
MODULES = ("stoker", "stoker.torch", "stoker.testing", "stoker.testing.crash")

# What public names hand out: not made by users, and so at home where the work is done.
HANDED_OUT = (
    "stoker.feed.loader.Loader",
    "stoker.feed.batch.Batch",
    "stoker.feed.options.FeedStats",
    "stoker.dataset.position.Position",
    "stoker.checkpoint.save.Checkpoint",
    "stoker.checkpoint.save.CheckpointStats",
    "stoker.checkpoint.passage.DrainStats",
    "stoker.checkpoint.publish.Save",
    "stoker.meter.report.Report",
    "stoker.dataset.write.DatasetWriter",
    "stoker.dataset.manifest.Manifest",
    "stoker.testing.fault_server",
)
# Of classes that rooms of stoker use as well: what is for users.
FOR_USERS = {"Save": ("staged", "reached", "settled", "error", "wait")}
SPOKEN = ("__getitem__", "__iter__", "__len__")  # methods that Python has signs for
MADE = {
    "TensorBatch",
    "LoaderDataset",
    "Run",
    "Loader",
    "Batch",
    "Checkpoint",
    "Save",
    "Report",
    "DatasetWriter",
    "Manifest",
    "Position",
}  # not by users
WIDTH = 100


class Bare:
    """An annotation as it is written, without quotes around it."""

    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text


def bare(annotation):
    if annotation is inspect.Signature.empty:
        return annotation
    annotation = getattr(annotation, "__forward_arg__", annotation)
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return Bare(re.sub(r"\b(?:stoker|collections|typing|types|numpy|os)\.(?:\w+\.)*", "", text))


def signature(name, function, *, method=False):
    """`name(a: int, *, b: str = 'x') -> int`, a parameter a line where it is long."""
    found = inspect.signature(function)
    parameters = [p.replace(annotation=bare(p.annotation)) for p in found.parameters.values()]
    if method:
        parameters = parameters[1:]
    returns = bare(found.return_annotation)
    if isinstance(function, type) or repr(returns) == "None":
        returns = inspect.Signature.empty
    line = name + str(found.replace(parameters=parameters, return_annotation=returns)).replace("<factory>", "...")
    if len(line) <= WIDTH or method:
        return line
    stars = [i for i, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY][:1]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        stars = []
    lines = [f"    {p},".replace("<factory>", "...") for p in parameters]
    for at in stars:
        lines.insert(at, "    *,")
    arrow = "" if returns is inspect.Signature.empty else f" -> {returns!r}"
    return "\n".join([f"{name}(", *lines, f"){arrow}"])


def words(thing):
    """A docstring as Markdown: paragraphs in one line each, attributes as a list, examples as blocks."""
    found = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(thing.__doc__ or "")):
        head, _, rest = paragraph.partition("\n")
        if head == "Attributes:":
            items = re.split(r"\n(?=\S)", textwrap.dedent(rest))
            found.append("\n".join(f"- {' '.join(item.split())}" for item in items))
        elif paragraph.startswith("    "):
            found.append(f"```text\n{textwrap.dedent(paragraph).rstrip()}\n```")
        elif paragraph.strip("\n ") != "::":
            found.append(" ".join(paragraph.split()).removesuffix("::").strip())
    return "\n\n".join(part for part in found if part)


def members(thing):
    """Methods and properties of a class with their own words, in the order of the source."""
    for name, value in vars(thing).items():
        hidden = (name.startswith("_") and name not in SPOKEN) or name not in FOR_USERS.get(thing.__name__, (name,))
        function = getattr(value, "__func__", value)
        if hidden or name.startswith("test_") or not getattr(value, "__doc__", None):
            continue
        if isinstance(value, property):
            yield f"`.{name}`", value
        elif inspect.isfunction(function):
            yield f"`{signature(f'.{name}', function, method=True)}`", value


def entry(path):
    """What the page says of a public name."""
    thing, name = look_up(path), path.rpartition(".")[2]
    if isinstance(thing, types.ModuleType):
        return words(thing)
    shown = path if path.startswith("stoker.") and path.count(".") == 1 else name
    parts = []
    if inspect.isfunction(thing) or (inspect.isclass(thing) and name not in MADE and not name.endswith("Suite")):
        parts.append(f"```text\n{signature(shown, thing)}\n```")
    elif not inspect.isclass(thing):
        return f"`{thing!r}`"
    parts.append(words(thing))
    if inspect.isclass(thing):
        parts.append("\n".join(f"- {head}: {' '.join(words(value).split())}" for head, value in members(thing)))
    return "\n\n".join(part for part in parts if part)


def look_up(path):
    module, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(module), name, None)
    return found if found is not None else importlib.import_module(path)


def public_names():
    for name in MODULES:
        module = importlib.import_module(name)
        yield from (f"{name}.{public}" for public in getattr(module, "__all__", ()) if public != "__version__")


def paths():
    """Every name that has a section."""
    return [*public_names(), *HANDED_OUT]


def written(text, path):
    _, found, rest = text.partition(f"<!-- generated: {path} -->\n")
    return rest.partition("\n<!-- end -->")[0] if found else None


def test_every_public_name_has_its_section_and_no_other_has(pages):
    sections = re.findall(r"^<!-- generated: (\S+) -->$", pages[PAGE].text, re.MULTILINE)
    assert sections == sorted(set(sections), key=sections.index)
    assert sorted(sections) == sorted(paths())


def test_each_section_says_what_the_source_says(pages):
    stale = [path for path in paths() if written(pages[PAGE].text, path) != entry(path)]
    assert not stale, "\n\n".join(f"put this under {path} in {PAGE}:\n{entry(path)}" for path in stale)


def test_every_public_name_says_what_it_is():
    silent = [path for path in paths() if not isinstance(look_up(path), int | str) and not words(look_up(path))]
    assert silent == []


def test_what_can_fail_says_with_which_errors(pages):
    for path in ("stoker.open", "stoker.writer", "stoker.Dataset", "stoker.Run", "stoker.Layout"):
        assert re.search(r"Raises \w*(Error|Exists|Busy)", written(pages[PAGE].text, path)), path
    mentioned = set(re.findall(r"Raises ([A-Z]\w+)", pages[PAGE].text))
    assert [name for name in mentioned if not hasattr(errors, name) and not hasattr(builtins, name)] == []


def test_the_anchor_of_a_name_is_its_own_section(pages):
    headings = re.findall(r"^### `([\w.]+)`$", pages[PAGE].text, re.MULTILINE)
    assert len(headings) == len(set(headings)) == len(paths())


def test_a_name_that_is_missing_or_stale_is_found():
    page = "<!-- generated: stoker.open -->\nold\n<!-- end -->"
    assert written(page, "stoker.open") == "old" != entry("stoker.open")
    assert written(page, "stoker.Run") is None


@pytest.mark.parametrize("name", MODULES)
def test_a_module_of_the_page_is_imported_by_its_own_name(name):
    subprocess.run([sys.executable, "-c", f"import {name}"], check=True)
