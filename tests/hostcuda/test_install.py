"""The error for a machine or a CuPy that cannot be used: one sentence, with what to install."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from gtensor.hostcuda import Unusable, build, children, elf, install, installed
from gtensor.hostcuda.kernels import compiler

module = sys.modules["gtensor.hostcuda.install"]


@pytest.mark.parametrize(("arguments", "message"), [
    ({"mode": "lazy"}, r"^mode is one of eager, deferred, got 'lazy'$"),
    ({"devices": 0}, r"^devices is 1 to 4, got 0$"),
    ({"devices": 5}, r"^devices is 1 to 4, got 5$"),
])
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        install(**arguments)


def test_another_platform(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(Unusable, match="^hostcuda runs on Linux x86-64, this is linux aarch64$"):
        install()


def test_after_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(RuntimeError, match="before it is imported; cupy"):
        install()


@pytest.mark.parametrize("version", ["13.6.0", "14.3.0"])
def test_another_cupy(monkeypatch, version):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    with pytest.raises(Unusable, match=rf"found {version}; install cupy-cuda13x==14\.2\.\*$"):
        module._cupy()


def test_no_cupy(monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    with pytest.raises(Unusable, match=r"not installed; install cupy-cuda13x==14\.2\.\*$"):
        module._cupy()


def test_no_compiler(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unusable, match=r"g\+\+, which is not on PATH; install g\+\+"):
        build.compiler()


def test_no_headers(monkeypatch):
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unusable, match=r"headers, which are not installed; install "):
        build.headers()


@pytest.mark.parametrize("given", ["/dev/null/cache", None])
def test_no_folder_to_write_into(monkeypatch, given):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("GTENSOR_HOSTCUDA_CACHE", given or "")
    monkeypatch.setattr(build.Path, "home", homeless)
    with pytest.raises(Unusable, match="; let GTENSOR_HOSTCUDA_CACHE name a folder"), \
            build.locked(build.cache() / "native" / "it"):
        pass


def test_a_list_of_headers_that_cannot_be_read_is_none(tmp_path):
    place = tmp_path / "program"
    place.with_suffix(".headers").write_text('["/half')
    assert compiler._named(place) == tmp_path / "program.so"


def test_a_file_without_symbols(tmp_path):
    text = tmp_path / "module.so"
    text.write_bytes(b"no ELF file at all" * 10)
    with pytest.raises(elf.NoSymbols, match="is not an x86-64 ELF file"):
        elf.functions(text)


def test_child_processes_find_the_settings(monkeypatch):
    environment = {"PYTHONPATH": "/mine"}
    children.inherit(environment, {"mode": "deferred", "devices": 3})
    monkeypatch.setenv(children.VARIABLE, environment[children.VARIABLE])
    assert children.settings() == {"mode": "deferred", "devices": 3}
    assert environment["PYTHONPATH"].startswith(str(children._SITE))
    assert environment["PYTHONPATH"].endswith(":/mine")


def run(arguments, settings=None, **variables):
    """A Python process whose host devices are those of `settings`, none if that is None."""
    environment = {name: value for name, value in os.environ.items() if name != children.VARIABLE}
    environment |= {"PYTHONPATH": str(Path(build.__file__).parents[2]), **variables}
    if settings is not None:
        children.inherit(environment, settings)
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True,
                          text=True, timeout=900)


def test_a_child_process_without_its_devices_ends():
    ended = run(["-c", "print('went on')"], {"mode": "lazy"})
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == ("hostcuda, which this process was started with, cannot be installed: "
                            "mode is one of eager, deferred, got 'lazy'\n")


def test_a_library_of_the_same_name(tmp_path):
    library = tmp_path / "other.so"
    build.gpp(["-shared", "-Wl,-soname,libcublas.so.13", "-xc++", "/dev/null", "-o", library])
    program = ("import ctypes; from gtensor import hostcuda\n"
               f"ctypes.CDLL({str(library)!r})\n"
               "try: hostcuda.install()\n"
               "except hostcuda.Unusable as error: print(error, hostcuda.installed())")
    assert run(["-c", program]).stdout == (
        "libcublas.so.13 is loaded in this process already; hostcuda must be installed before it "
        "is (before torch is imported, for example) False\n")


def test_a_failure_half_way(tmp_path):
    program = ("import sys; from gtensor import hostcuda\n"
               "def refused(*_): raise hostcuda.install.__globals__['elf'].NoSymbols('no jump')\n"
               "hostcuda.install.__globals__['elf'].patch = refused\n"
               "for _ in range(2):\n"
               "    try: hostcuda.install()\n"
               "    except RuntimeError as error: print(error, hostcuda.installed())")
    assert run(["-c", program]).stdout.splitlines() == [
        "CuPy's module cupy_backends/cuda/api/runtime is not as expected (no jump); install the "
        "wheel cupy-cuda13x==14.2.* False",
        "an earlier install() failed half-way in this process; wanted a new one False"]


@pytest.mark.parametrize("given", [None, "/mine", "/mine/hostcuda"])
def test_images_have_a_folder_of_their_own(monkeypatch, given):
    monkeypatch.delenv("CUPY_CACHE_DIR", raising=False)
    if given:
        monkeypatch.setenv("CUPY_CACHE_DIR", given)
    wanted = Path("/mine/hostcuda") if given else build.cache() / "cupy" / "hostcuda"
    assert module._cupy_cache() == wanted


def test_the_mode_that_pytest_is_given_is_the_one_that_tests_run_in(tmp_path):
    test = tmp_path / "test_mode.py"
    test.write_text("from gtensor.hostcuda.install import present\n"
                    "def test_it(): assert (present()['mode'], present()['devices'])"
                    " == ('deferred', 3)\n")
    ran = run(["-m", "gtensor.hostcuda", "--devices", "3", "--seed", "5", "-m", "pytest", "-c",
               "/dev/null", "-p", "gtensor.hostcuda.pytest_plugin", "-p", "no:cacheprovider",
               "--host-cuda=deferred", str(test)])
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "hostcuda: 3 host devices, deferred, seed 5\n" in ran.stdout


@pytest.mark.parametrize("words", [["--host-cuda", "PATH"], ["PATH", "--host-cuda"],
                                   ["--host-cuda", "eager", "PATH"]])
def test_pytest_may_be_given_a_path_behind_the_option(tmp_path, words):
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser): parser.addoption('--mine', action='store_true')")
    (tmp_path / "test_mode.py").write_text(
        "from gtensor.hostcuda.install import present\n"
        "def test_it(request):\n"
        "    assert (present()['mode'], request.config.getoption('--mine')) == ('eager', True)\n")
    given = [word.replace("PATH", str(tmp_path)) for word in words]
    ran = run(["-m", "pytest", "-c", "/dev/null", "-p", "gtensor.hostcuda.pytest_plugin",
               "-p", "no:cacheprovider", *given, "--mine"])
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed" in ran.stdout


def test_pytest_may_be_given_two_modes_only():
    ran = run(["-m", "pytest", "-c", "/dev/null", "-p", "gtensor.hostcuda.pytest_plugin",
               "--host-cuda=lazy"])
    assert (ran.returncode, ran.stderr.strip()) == (
        4, "ERROR: --host-cuda is eager or deferred, got 'lazy'")


def test_a_child_process_of_another_python_goes_on_without(tmp_path):
    """Packages of the program's Python may not fit it, and are not on its path."""
    venv.create(tmp_path, symlinks=True, with_pip=False)
    environment = {name: value for name, value in os.environ.items()
                   if name not in (children.VARIABLE, "PYTHONPATH")}
    children.inherit(environment, {"mode": "eager"})
    ran = subprocess.run(
        [tmp_path / "bin" / "python", "-c",
         "import sys, os\nprint([each for each in sys.path if os.path.exists(each + '/gtensor')])"],
        env=environment, capture_output=True, text=True, timeout=900, cwd="/")
    assert (ran.returncode, ran.stdout) == (0, "[]\n")
    assert ran.stderr == ""


def test_errors_that_stay_are_forgotten_by_the_libraries_too(monkeypatch):
    if not installed():
        pytest.skip("it needs --host-cuda")
    from gtensor.hostcuda import forgive
    from gtensor.hostcuda.libraries.calls import runtime

    monkeypatch.setattr(runtime, "failures", ["an earlier failure"])
    forgive()
    assert runtime.failures == []
