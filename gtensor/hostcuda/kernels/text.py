"""CUDA text as C++ that g++ compiles behind `fibers/device.h`.

A text is changed in few places only: declarations of shared memory, module variables, inline PTX,
and a registration behind each kernel. Lines keep their numbers.
"""

from __future__ import annotations

import re
import zlib
from bisect import bisect
from dataclasses import dataclass

_HIDDEN = re.compile(
    r"""//(?:\\\n|[^\n])*|/\*.*?\*/|R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"
    |(?<!\w)'(?:\\.|[^'\\\n])+'|(?P<directive>^[ \t]*\#(?:\\\n|/\*.*?\*/|[^\n])*)""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_GLOBAL = re.compile(r"\b__global__\b")
_VARIABLE = re.compile(r"\b__device__\b(?=(?P<declaration>[^;={\[(]*)[;={\[])")
_ATTRIBUTE = re.compile(r"(__\w+__|alignas|noexcept)\s*(?=\()")
_CALLED = re.compile(r"(\w+)\s*(?:<[^;{}()]*>\s*)?\(")
_SHARED = re.compile(r"\bextern\b(?=[^;{}()]*(?:\([^;{}]*\)[^;{}]*)?\b__shared__\b)[^;{}]*;"
                     r"|\b__shared__\s+extern\b[^;{}]*;")
_DYNAMIC = re.compile(r"(?P<type>.*\S)\s*\b(?P<name>\w+)\s*\[\s*\]\s*;", re.DOTALL)
_ALIGNMENT = re.compile(r"\b(?:__align__|alignas)\s*\((?:[^()]|\([^()]*\))*\)")
_STATIC_SHARED = re.compile(r"\bstatic\s+(?=__shared__\b)|(?<=\b__shared__)\s+static\b")
_CONSTANT = re.compile(
    r"\b__constant__\b(?P<type>[^;={}(),]*[\s>*&])(?P<name>\w+)(?P<sizes>(?:\s*\[[^\]]*\])*)\s*"
    r"(?=[;={])")
_READ_ONLY = re.compile(r"\b(?:const|constexpr|extern|template)\b")
_ASSEMBLY = re.compile(r"\b(?:asm|__asm__|__asm)\b(?:\s*\b(?:volatile|__volatile__))?\s*(?=\()")
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b.*$", re.MULTILINE)


class TextError(ValueError):
    """A text that the host device does not run; the sentence names the line."""


@dataclass(frozen=True)
class Kernel:
    """A kernel's definition: its name, the expression of its launch bound, and where it ends."""

    name: str
    bound: str
    parameters: str
    template: bool
    end: int


def visible(text: str) -> str:
    """The text with comments, literals and preprocessor lines blanked; positions stay."""
    return _HIDDEN.sub(_blank, text)


def defines_kernels(text: str) -> bool:
    """Whether a macro of the text stands for a kernel, so that only its expansion shows them."""
    return any(found["directive"] and "__global__" in found[0] and "define" in found[0]
               for found in _HIDDEN.finditer(text))


def without_includes(text: str) -> str:
    """The text to be preprocessed by itself: `with_includes` restores its #include lines."""
    return _INCLUDE.sub(lambda found: f"__hostcuda_include__ {found[0].strip()[1:]}", text)


def with_includes(text: str) -> str:
    """Undoes `without_includes`."""
    return re.sub(r"^[ \t]*__hostcuda_include__ ", "#", text, flags=re.MULTILINE)


def kernels(text: str) -> list[Kernel]:
    """The kernels that a text defines, in its order."""
    return _kernels(visible(text))


def constants(text: str) -> set[str]:
    """The variables that NVRTC lets no kernel assign to.

    Arrays are none of them: NVRTC lets kernels write to their elements, and only warns.
    """
    return {found["name"] for found in _constants(text, visible(text)) if not found["sizes"]}


def host_text(text: str, constant: bool = True) -> str:
    """The text for g++, every kernel that is no template registered.

    Args:
        text: CUDA C++.
        constant: let g++ refuse assignments to variables that are __constant__.

    Raises:
        TextError: for dynamic shared memory declared in a way unknown here.
    """
    shown = visible(text)
    edits = [*_shared_edits(text, shown), *_constant_edits(text, shown, constant)]
    edits += _assembly_edits(text, shown)
    edits += [(found.end(), found.end(), " HOSTCUDA_EXPORTED ")
              for found in _VARIABLE.finditer(_ALIGNMENT.sub(_blank, shown))]
    edits += [(kernel.end, kernel.end, f" HOSTCUDA_KERNEL({kernel.name}, {kernel.bound}, "
                                       f"({kernel.parameters}))")
              for kernel in _kernels(shown) if not kernel.template]
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _kernels(shown: str) -> list[Kernel]:
    found = []
    for match in _GLOBAL.finditer(shown):
        before = max(shown.rfind(mark, 0, match.start()) for mark in ";{}") + 1
        template = re.search(r"\btemplate\b", shown[before:match.start()]) is not None
        kernel = _kernel(shown, match.end(), template)
        if kernel is not None:
            found.append(kernel)
    return found


def _kernel(shown: str, position: int, template: bool) -> Kernel | None:
    bound = "1024"
    while True:
        call = _CALLED.search(shown, position)
        attribute = _ATTRIBUTE.search(shown, position)
        if call is None:
            return None
        if attribute is None or attribute.start() > call.start():
            break
        position = _closing(shown, attribute.end(), "(", ")")
        if attribute[1] == "__launch_bounds__":
            bound = shown[attribute.end() + 1:position - 1].split(",")[0].strip()
    after = _closing(shown, call.end() - 1, "(", ")")
    body = re.compile(r"\s*\{").match(shown, after)
    if body is None:
        return None
    parameters = " ".join(shown[call.end():after - 1].split())
    return Kernel(call[1], bound, parameters, template,
                  _closing(shown, body.end() - 1, "{", "}"))


def _closing(shown: str, position: int, opening: str, closing: str) -> int:
    """Behind the bracket that closes the one at `position`; the end where none does."""
    depth = 0
    for match in re.compile(f"[{re.escape(opening + closing)}]").finditer(shown, position):
        depth += 1 if match[0] == opening else -1
        if depth == 0:
            return match.end()
    return len(shown)


def _shared_edits(text: str, shown: str) -> list[tuple[int, int, str]]:
    """C++ has no array whose size a launch chooses: it becomes a pointer that the launch gives."""
    edits = [(found.start(), found.end(), " ") for found in _STATIC_SHARED.finditer(shown)]
    braces = [match.start() for match in re.finditer(r"[{}]", shown)]
    for found in _SHARED.finditer(shown):
        bare = re.sub(r"\b(extern|__shared__)\b", " ", _ALIGNMENT.sub(" ", found[0]))
        declared = _DYNAMIC.fullmatch(bare.strip())
        if declared is None or "," in re.sub(r"<[^<>]*>", "", declared["type"]):
            raise TextError(
                f"line {_line(text, found.start())}: a declaration of dynamic shared memory that "
                "the host device cannot read; wanted `extern __shared__ TYPE name[];`"
            )
        ctype, name = " ".join(declared["type"].split()), declared["name"]
        inside = _in_function(shown, braces, found.start())
        new = (f"{ctype} *const {name} = hostcuda::dynamic_shared<{ctype}>();" if inside else
               f"static hostcuda::DynamicShared<{ctype}> {name};")
        edits.append((found.start(), found.end(), new + "\n" * found[0].count("\n")))
    return edits


def _assembly_edits(text: str, shown: str) -> list[tuple[int, int, str]]:
    """Inline PTX becomes what g++ refuses, unless it stands in a branch that is not compiled."""
    edits = []
    for found in _ASSEMBLY.finditer(shown):
        end = _closing(shown, found.end(), "(", ")")
        said = (f"line {_line(text, found.start())}: inline PTX given; the host device compiles "
                "kernels by g++ and runs no PTX: wanted C++ where __HOSTCUDA__ is defined")
        lines = "\n" * text.count("\n", found.start(), end)
        edits.append((found.start(), end, f'static_assert(false, "{said}"){lines}'))
    return edits


def _constants(text: str, shown: str) -> list[re.Match[str]]:
    """Declarations of one __constant__ variable each."""
    constants = []
    braces = [match.start() for match in re.finditer(r"[{}]", shown)]
    for found in _CONSTANT.finditer(_ALIGNMENT.sub(_blank, shown)):
        start, end = found.start("name"), shown.find(";", found.end())
        before = max(shown.rfind(mark, 0, found.start()) for mark in ";{}") + 1
        several = "," in re.sub(r"\{[^;]*\}|\([^;]*\)", "", shown[found.end():end])
        if not (end < 0 or several or _READ_ONLY.search(shown[before:start])
                or _in_function(shown, braces, start)):
            constants.append(found)
    return constants


def _constant_edits(text: str, shown: str, constant: bool) -> list[tuple[int, int, str]]:
    """The variable gets another name; its own name becomes that of an alias, constant or not.

    The host writes to the variable, so g++ must not know its value: the alias is weak, and visible
    where the variable is static.
    """
    edits = []
    for found in _constants(text, shown):
        name, start, end = found["name"], found.start("name"), shown.find(";", found.end()) + 1
        place = f"hostcuda_{name}_{start}_{zlib.crc32(text.encode()):x}"
        const = "const " if constant and not found["sizes"] else ""
        edits += [(start, start + len(name), place),
                  (found.end("sizes"), found.end("sizes"), f' __asm__("{place}")'),
                  (end, end, f' extern {const}decltype({place}) {name} HOSTCUDA_EXPORTED '
                             f'__attribute__((weak, alias("{place}")));')]
    return edits


def _in_function(shown: str, braces: list[int], position: int) -> bool:
    """Whether a brace that is open there belongs to no namespace and to no `extern "C"`."""
    depth = 0
    for at in reversed(braces[:bisect(braces, position)]):
        depth += 1 if shown[at] == "}" else -1
        if depth < 0:
            depth = 0
            before = max(shown.rfind(mark, 0, at) for mark in ";{}") + 1
            if not re.search(r"\b(namespace|extern)\b", shown[before:at]):
                return True
    return False
