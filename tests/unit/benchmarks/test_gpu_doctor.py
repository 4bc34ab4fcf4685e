"""The doctor's part of the check on a GPU machine: what it finds wrong is an answer, and no answer is a failure."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[3] / "benchmarks" / "gpu_doctor.py"


@pytest.fixture
def gpu_doctor():
    spec = importlib.util.spec_from_file_location("benchmarks_gpu_doctor", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def verb(gpu_doctor, monkeypatch, tmp_path):
    """Stands for the command line: prints and ends as it is told."""

    def verb(code, text):
        script = tmp_path / "python"
        script.write_text(f"#!/bin/sh\necho '{text}'\nexit {code}\n")
        script.chmod(0o755)
        monkeypatch.setattr(gpu_doctor.sys, "executable", str(script))

    return verb


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_what_the_doctor_finds_is_an_answer_whatever_its_exit_code(gpu_doctor, verb, code):
    verb(code, json.dumps({"exit_code": code}))
    assert gpu_doctor.ask(["gds"], 10) == {"exit_code": code}


@pytest.mark.parametrize(("code", "text", "said"), [(4, "{}", "status 4"), (0, "oops", "no JSON")])
def test_no_answer_is_an_error(gpu_doctor, verb, code, text, said):
    verb(code, text)
    assert said in gpu_doctor.ask(["gds"], 10)["error"]


@pytest.mark.parametrize(("numbers", "code"), [('{"copy": 1}', 0), ("", 0), ('{"copy": 1}', 9)])
def test_the_reports_stand_beside_the_numbers_and_nothing_stays(
    gpu_doctor, verb, monkeypatch, tmp_path, capsys, numbers, code
):
    verb(code, "{}")
    monkeypatch.setattr(gpu_doctor, "FILE_BYTES", 4096)
    monkeypatch.setattr(sys, "stdin", io.StringIO(numbers))
    monkeypatch.setattr(sys, "argv", ["gpu_doctor.py", str(tmp_path)])
    assert gpu_doctor.main() == (1 if code else 0)
    found = json.loads(capsys.readouterr().out)
    assert set(found["doctor"]) == {"gds", "storage", "why"}
    assert found.get("copy") == (1 if numbers else None)
    assert [path.name for path in tmp_path.iterdir()] == ["python"]
