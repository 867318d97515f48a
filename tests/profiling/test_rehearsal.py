"""What a rehearsal of a GPU machine finds, and what a bundle for one holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import gpu_bundle
import gpu_machine
import gpu_steps
import kernel_cache
import pytest
import rehearse
from gpu_check import HEAD, Outcome
from gpu_machine import Impossible

ROOT = Path(__file__).resolve().parents[2]
GOOD_TESTS = "".join(f"FAILED {name}\n    reason: so\n" for name in sorted(rehearse.EXPECTED)
                     ) + "FAILED tests/a.py::test_b\n    reason: AssertionError\n40 of 40 run\n"
GOOD_OPS = "".join(f"FAILED {name}: context lost\n" for name in sorted(rehearse.EXPECTED_OPS)
                   ) + "ok     add float32 (0.1 s)\n\n40 run on cuda, 2 failed; 3 of 3 kernels\n"


def left(out: Path, tests: str = GOOD_TESTS, ops: str = GOOD_OPS, without: str = "",
         **planted: tuple[str, float]) -> list[str]:
    """What is wrong with a call in which all went well but for what is planted."""
    rows = []
    for step in (*gpu_steps.environment(), gpu_steps.smoke(), *gpu_steps.first()):
        status, cpu = planted.get(step.name, ("FAILED: exit status 1", 1.0))
        if step.name != without:
            rows.append(Outcome(step, status, 1.0, cpu, step.seconds).row())
    (out / "summary.txt").write_text("\n".join([HEAD, *rows, "failed test tests/a.py::test_b", ""]))
    (out / "gpu_tests.log").write_text(tests)
    (out / "kernels.log").write_text(ops)
    return rehearse.verdicts(out)


def test_a_good_call_has_nothing_wrong(tmp_path: Path) -> None:
    assert left(tmp_path) == []


@pytest.mark.parametrize(("planted", "sentence"), [
    ({"kernels": ("ok", 0.61 * 90 * gpu_steps.PROCESSES)}, "takes 61% of its limit"),
    ({"memcheck": ("skipped: no compute-sanitizer", 0.0)}, "memcheck: skipped: no"),
    ({"arena": ("not started: the call's time is over", 0.0)}, "arena: not started"),
    ({"bandwidth": ("FAILED: over its 35 s", 1.0)}, "bandwidth: FAILED: over"),
])
def test_a_step_that_does_not_fit_is_found(
    planted: dict[str, tuple[str, float]], sentence: str, tmp_path: Path
) -> None:
    wrong = left(tmp_path, **planted)
    assert len(wrong) == 1 and sentence in wrong[0]


def test_a_step_that_was_not_reached_is_found(tmp_path: Path) -> None:
    assert left(tmp_path, without="host_time") == ["the step host_time was not reached"]


@pytest.mark.parametrize(("tests", "sentence"), [
    (GOOD_TESTS + "FAILED tests/c.py\n    reason: not collected\n", "tests/c.py is not collected"),
    (GOOD_TESTS + "FAILED tests/memory/test_planted.py::test_after[0]\n    reason: so\n",
     "of the planted tests"),
    (GOOD_TESTS.replace("FAILED tests/memory/test_planted.py::test_never_ends\n", ""),
     "of the planted tests"),
    (GOOD_TESTS.replace("40 of 40", "39 of 40"), "of the tests ran; wanted all"),
])
def test_tests_that_a_fault_takes_along_are_found(tests: str, sentence: str, tmp_path: Path
                                                  ) -> None:
    wrong = left(tmp_path, tests=tests)
    assert len(wrong) == 1 and sentence in wrong[0]


@pytest.mark.parametrize(("ops", "sentence"), [
    (GOOD_OPS + "FAILED tanh float32: context lost, CUDA error 700: so\n", "tanh float32 failed"),
    (GOOD_OPS + "FAILED tanh float32: no result within 25 s\n", "tanh float32 failed"),
    (GOOD_OPS.replace("FAILED planted hang", "ok     planted hang"), "of the planted ops"),
    (GOOD_OPS.replace("40 run on cuda", "40 run"), "did not report at its end"),
])
def test_ops_that_a_fault_takes_along_are_found(ops: str, sentence: str, tmp_path: Path) -> None:
    wrong = left(tmp_path, ops=ops)
    assert len(wrong) == 1 and sentence in wrong[0]


def test_the_machine_has_what_the_tests_import() -> None:
    known = gpu_machine.requirements().keys() | {"cupy"}
    imported = gpu_machine.third_party(gpu_steps.files_with_gpu_tests())
    ours = {path.stem for path in (ROOT / "profiling").glob("*.py")}
    assert {gpu_machine.normal(name) for name in imported - ours} - known <= set(gpu_bundle.WHEELS)
    assert {"torch", "numpy", "hypothesis"} <= imported


def test_an_environment_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    with pytest.raises(Impossible, match="was not made by this program"):
        gpu_machine.environment(tmp_path, Path(sys.executable), ["numpy"])
    assert (tmp_path / "lib").is_dir()


# -- a bundle --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "status", "sentence"), [
    (["bundle"], 64, "required: --site"),
    (["bundle", "--site", "site-packages"], 1, "wanted an absolute path that ends with"),
    (["bundle", "--site", "/nowhere/lib/python3.99/site-packages"], 1, "no Python 3.99"),
    ([".", "--site", "/nowhere/lib/python3.12/site-packages"], 64, "is there and is no bundle"),
])
def test_a_bundle_that_cannot_be_made_gets_one_sentence(
    given: list[str], status: int, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("kept")
    ended = subprocess.run([str(ROOT / "profiling" / "gpu_bundle.sh"), *given], cwd=tmp_path,
                           env={**os.environ, "PYTHON": sys.executable}, text=True,
                           capture_output=True)
    assert ended.returncode == status and sentence in ended.stderr
    assert "Traceback" not in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_kernels_are_unpacked_beside_those_that_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, bundle, cache = tmp_path / "made", tmp_path / "bundle", tmp_path / "cache"
    for folder in (made, bundle, cache):
        folder.mkdir()
    for name in ("a", "b"):
        (made / f"{name}.cubin").write_text(f"new {name}")
    (cache / "a.cubin").write_text("of this machine")
    for _ in range(2):
        gpu_bundle.pack(made, bundle / "kernels.tar.xz")
        first = (bundle / "kernels.tar.xz").read_bytes()
        os.utime(made / "a.cubin", (0, 0))
    assert (bundle / "kernels.tar.xz").read_bytes() == first  # whatever the time of day
    kernel_cache.unpack(bundle, cache)
    assert capsys.readouterr().out == "1 kernels unpacked\n"
    assert [(cache / f"{name}.cubin").read_text() for name in ("a", "b")] == [
        "of this machine", "new b"]


def test_an_archive_cannot_write_outside_the_cache(tmp_path: Path) -> None:
    (tmp_path / "evil").write_text("evil")
    with tarfile.open(tmp_path / "kernels.tar.xz", "w:xz") as archive:
        archive.add(tmp_path / "evil", "../../outside.cubin")
    kernel_cache.unpack(tmp_path, tmp_path / "a" / "cache")
    assert (tmp_path / "a" / "cache" / "outside.cubin").exists()
    assert not (tmp_path / "outside.cubin").exists()


@pytest.mark.host_cuda
def test_a_second_process_finds_the_kernels_of_the_first(tmp_path: Path) -> None:
    """With NVIDIA's NVRTC: none of 20 probes is found, then all, then none for other options."""
    python, cache = Path(sys.executable), tmp_path / "cache"
    environment = gpu_machine.on_host_device(python, cache) | {"GPU_CHECK_BUNDLE": str(tmp_path)}

    def said() -> str:
        return subprocess.run([python, "profiling/kernel_cache.py"], env=environment, cwd=ROOT,
                              text=True, capture_output=True, check=True).stdout

    assert "kernel cache: 0 of 20 probes hit" in said()
    (tmp_path / "about.json").write_text(json.dumps({"key": {"architecture": "80"}}))
    again = said()
    assert "kernel cache: 20 of 20 probes hit" in again
    assert "architecture: 90\n    differs from the bundle: 80" in again
    environment["CUPY_CUDA_COMPILE_WITH_DEBUG"] = "1"
    assert "kernel cache: 0 of 20 probes hit" in said()


@pytest.mark.host_cuda
def test_noted_texts_are_compiled_to_what_is_looked_for(tmp_path: Path) -> None:
    """Also those with template arguments; an environment of other folders has only the texts."""
    texts, note = tmp_path / "texts", tmp_path / "note_kernels.py"
    note.write_text(gpu_bundle.NOTE.format(str(texts)))

    def run(cache: str, *words: str) -> set[str]:
        environment = gpu_machine.on_host_device(Path(sys.executable), tmp_path / cache)
        subprocess.run([sys.executable, *words], env=environment, cwd=ROOT, capture_output=True)
        return {path.name for path in (tmp_path / cache).glob("*.cubin")}

    touch = ("profiling/touch_kernels.py", "--launch-only", "--only", "add,softmax,clipping")
    looked_for = run("one", *touch, "--with", str(note))
    assert len(looked_for) > 5
    assert run("other", "profiling/kernel_cache.py", "--compile", str(texts)) == looked_for
