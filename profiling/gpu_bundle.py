"""Make what a GPU machine without network lacks: packages, and compiled kernels.

    profiling/gpu_bundle.sh BUNDLE --site /opt/venv/lib/python3.12/site-packages

BUNDLE becomes a folder with wheels (packages that gtensor or its tests import and the machine
lacks), kernels.tar.xz (a cache of CuPy's for sm_90) and about.json (the parts of the cache's key).
It may have at most 50 MB. gpu_check.sh takes it from the folder gpu_bundle of the checkout, or from
where GPU_CHECK_BUNDLE says.

CuPy finds a compiled kernel by a key that holds the absolute folders of the headers. So an
environment is made here under the very path that it has on the machine. There this prints SITE:

    python3 -c "import cupy, pathlib; print(pathlib.Path(cupy.__file__).parents[1])"

In it NVIDIA's own NVRTC compiles the texts of all kernels that the checks and the tests launch.
These are noted on a host device (docs/testing.md), on which no kernel runs. On a machine where a
part of the key differs, kernels are compiled as without a bundle.

Exit status: 0; 1 if a part could not be made; 64 for wrong usage. BUNDLE is replaced only when the
new one is complete.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import gpu_machine
from gpu_machine import Impossible
from gpu_steps import CHECKOUT, GPU_TESTS, files_with_gpu_tests, testing

MOST_BYTES = 50_000_000
# gtensor's need, one of PyTorch's tests, which ours use, and what special functions are judged by.
WHEELS = ("nvtx", "expecttest", "mpmath")
NOTE = "from pathlib import Path\nimport kernel_cache\nkernel_cache.note(Path({!r}))\n"
PLATFORMS = [word for name in ("_2_28", "_2_27", "_2_17", "2014", "1")
             for word in ("--platform", f"manylinux{name}_x86_64")]


def wheels(folder: Path, version: str, python: Path) -> None:
    """Download the missing packages for this version of Python."""
    subprocess.run([python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
                    "--no-deps", "--only-binary=:all:", "--python-version", version,
                    "--implementation", "cp", *PLATFORMS, "--dest", folder, *WHEELS], check=True)


def noted(room: Path) -> Path:
    """The texts that the checks and the tests launch; what they compute is of no interest.

    They run in the environment of a rehearsal, whose compiled kernels are kept for the next time.
    """
    python = gpu_machine.rehearsing()
    texts, note, log = room / "texts", room / "note_kernels.py", room / "log"
    note.write_text(NOTE.format(str(texts)))
    environment = gpu_machine.on_host_device(python, gpu_machine.CACHE / "cupy")
    environment |= {"PYTHONPATH": f"{environment['PYTHONPATH']}{os.pathsep}{room}",
                    "GPU_CHECK_REHEARSAL": "1", "PYTHONOPTIMIZE": "1"}
    processes = str(os.cpu_count() or 1)
    programs = {
        "every op in every dtype": ["profiling/touch_kernels.py", "--processes", processes,
                                    "--job-seconds", "0", "--launch-only", "--with", str(note)],
        "the tests marked gpu": testing(
            files_with_gpu_tests(), "-p", "note_kernels", "--assert=plain", "-n", processes,
            "--dist", "load", "--no-summary", "-m", GPU_TESTS)[1:],
    }
    with log.open("a") as file:
        for name, words in programs.items():
            print(f"noting the kernels of {name}", flush=True)
            subprocess.run([python, *words], env=environment, cwd=CHECKOUT, stdout=file,
                           stderr=subprocess.STDOUT)
            if not texts.exists():
                print(log.read_text()[-3000:], file=sys.stderr)
                raise Impossible("no kernel was launched; the end of the log is above")
            print(f"   {len(set(texts.read_text().splitlines()))} texts", flush=True)
    return texts


def pack(cache: Path, target: Path) -> None:
    """All kernels in one archive; the same kernels make the same bytes."""
    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime = member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(target, "w:xz") as archive:
        for path in sorted(cache.glob("*.cubin")):
            archive.add(path, path.name, filter=plain)


def make(bundle: Path, site: Path) -> None:
    """The bundle for a machine on which CuPy lies in `site`."""
    match = re.fullmatch(r"(/.+)/lib/python(3\.\d+)/site-packages", str(site))
    if match is None:
        raise Impossible(f"--site {site} given; wanted an absolute path that ends with "
                         "/lib/python3.N/site-packages")
    interpreter = gpu_machine.interpreter(match[2])
    if interpreter is None:
        raise Impossible(f"no Python {match[2]} on this machine, which --site asks for; install "
                         "it, or put it on PATH")
    wanted = gpu_machine.requirements()
    python = gpu_machine.environment(Path(match[1]), interpreter, [
        wanted["numpy"], wanted["cupy-cuda13x"], wanted["ml-dtypes"], wanted["opt-einsum"],
        *gpu_machine.pinned("hostcuda")[1:]])
    bundle.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=bundle.parent, prefix=".bundle-") as room:
        new, cache = Path(room) / "bundle", Path(room) / "cupy"
        new.mkdir()
        wheels(new / "wheels", match[2], python)
        environment = gpu_machine.on_host_device(python, cache)
        texts = noted(Path(room))
        print("compiling them for the machine", flush=True)
        subprocess.run([python, "profiling/kernel_cache.py", "--compile", texts], check=True,
                       env=environment, cwd=CHECKOUT)
        key = subprocess.run([python, "profiling/kernel_cache.py", "--parts"], check=True,
                             env=environment, cwd=CHECKOUT, stdout=subprocess.PIPE,
                             text=True).stdout
        count = len(list(cache.glob("*.cubin")))
        print(f"packing {count} kernels", flush=True)
        pack(cache, new / "kernels.tar.xz")
        (new / "about.json").write_text(json.dumps(
            {"site": str(site), "kernels": count, "key": json.loads(key)}, indent=1) + "\n")
        size = sum(path.stat().st_size for path in new.rglob("*") if path.is_file())
        if size > MOST_BYTES:
            raise Impossible(f"the bundle has {size:,} bytes; wanted at most {MOST_BYTES:,}")
        if bundle.exists():
            bundle.rename(Path(room) / "before")
        new.rename(bundle)
    print(f"{bundle}: {count} kernels, {len(WHEELS)} packages, {size / 1e6:.1f} MB")


def main() -> int:
    """Parse, make."""
    parser = argparse.ArgumentParser(
        prog="gpu_bundle.sh", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="the folder to make")
    parser.add_argument("--site", type=Path, required=True,
                        help="the folder in which CuPy is installed on the machine")
    try:
        given = parser.parse_args()
    except SystemExit as end:
        return 64 if end.code else 0
    bundle = given.bundle
    if bundle.exists() and (not bundle.is_dir()
                            or (any(bundle.iterdir()) and not (bundle / "about.json").exists())):
        print(f"gpu_bundle: {bundle} is there and is no bundle; name another folder",
              file=sys.stderr)
        return 64
    try:
        make(bundle, given.site)
    except (Impossible, OSError, subprocess.CalledProcessError) as error:
        print(f"gpu_bundle: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
