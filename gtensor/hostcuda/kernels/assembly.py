"""What the assembly of a module says of its kernels: static shared memory."""

from __future__ import annotations

import re

_FUNCTION = re.compile(r"^\t\.type\t(\S+), @function\n(.*?)^\t\.size\t\1,",
                       re.MULTILINE | re.DOTALL)
# The section of fibers/device.h's __shared__, and of nothing else.
_SHARED = re.compile(r"^\t\.section\t\.noinit\b.*\n(?P<variables>(?:(?!\t\.section\b|\t\.text\b"
                     r"|\t\.data\b|\t\.bss\b).*\n)*)", re.MULTILINE)
_VARIABLE = re.compile(r"^\t\.size\t(\S+), (\d+)$", re.MULTILINE)
_EXPORTED = re.compile(r"^\t\.(?:globl|weak)\t(\S+)$", re.MULTILINE)
_NAME = re.compile(r"[\w.$]+")


def static_shared(text: str) -> dict[str, int]:
    """Kernel -> bytes of the static shared variables that it, or what it calls, refers to.

    Padding between the variables is not counted.
    """
    sizes = {name: int(size) for section in _SHARED.finditer(text)
             for name, size in _VARIABLE.findall(section["variables"])}
    if not sizes:
        return {}
    uses = {name: set(_NAME.findall(body)) for name, body in _FUNCTION.findall(text)}
    return {name: sum(sizes[each] for each in _reached(name, uses) if each in sizes)
            for name in _EXPORTED.findall(text) if name in uses}


def _reached(name: str, uses: dict[str, set[str]]) -> set[str]:
    """The names that a function refers to, by way of others, too."""
    seen, waiting = {name}, [name]
    while waiting:
        new = uses.get(waiting.pop(), set()) - seen
        seen |= new
        waiting += new
    return seen


def table(sizes: dict[str, int]) -> str:
    """Assembly for the table that fibers/module.h reads."""
    entries = "".join(f"\t.quad\t{name}, {size}\n" for name, size in sizes.items() if size)
    return ("\t.section\t.data.rel.ro,\"aw\"\n\t.align 8\n\t.globl\thostcuda_static_shared\n"
            "\t.hidden\thostcuda_static_shared\nhostcuda_static_shared:\n" + entries
            + "\t.quad\t0, 0\n")
