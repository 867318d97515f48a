"""einsum: sums of products by named axes, contracted pair by pair.

The order of the pairs is opt_einsum's (Smith and Gray, JOSS 2018). Each pair is one matrix product
on permuted, reshaped views, or one multiplication where nothing is summed over; repeated letters
are diagonals, and letters of one operand alone are summed first. So no temporary is larger than the
largest intermediate result of the path, and the gradient is that of the ops.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from gtensor.engine.handle.tensor import Tensor
from gtensor.ops.arrange.shape import broadcast_to, permute_dims, reshape
from gtensor.ops.define.arguments import all_tensors, autocast
from gtensor.ops.elementwise.arithmetic import multiply
from gtensor.ops.linalg.gemm import matmul
from gtensor.ops.linalg.norms import diagonal
from gtensor.ops.reduce.reductions import sum as total

__all__ = ["einsum"]

Shapes = tuple[tuple[int, ...], ...]
Pairs = tuple[tuple[int, ...], ...]


def einsum(subscripts: str, /, *operands: Tensor) -> Tensor:
    """The sum of products that `subscripts` names: "ij,jk->ik" is a matrix product.

    Each operand has a letter per axis; axes of one letter have one size, or size 1, which is
    repeated. Letters that the output lacks are summed over. Without "->" the output
    has the letters that occur once, in alphabetical order. "..." stands for the axes not named,
    which broadcast. Differentiable in every operand; a view where one operand is only rearranged.

    Raises ValueError where subscripts and shapes do not fit, TypeError where they are no text.
    """
    if not isinstance(subscripts, str):
        raise TypeError(f"einsum was given {type(subscripts).__name__} as subscripts; wanted a "
                        "text such as 'ij,jk->ik'")
    tensors = autocast("low", *all_tensors("einsum", "operands", operands))
    terms, output, sizes, pairs = _plan(subscripts, tuple([x.shape for x in tensors]))
    parts = [_simple(x, term, sizes) for x, term in zip(tensors, terms, strict=True)]
    for pair in pairs:
        chosen = [parts.pop(i) for i in sorted(pair, reverse=True)]
        needed = set(output).union(*(letters for _, letters in parts))
        parts.append(_contracted(chosen[::-1], needed))
    (x, letters), = parts
    x, letters = _summed(x, letters, set(output))
    result = _permuted(x, letters, output)
    return reshape(x, x.shape) if any(result is one for one in tensors) else result


# -- reading subscripts ----------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _plan(subscripts: str, shapes: Shapes) -> tuple[tuple[str, ...], str, dict[str, int], Pairs]:
    """The letters of each operand and of the output, the size of each letter, and the path."""
    terms, output = _parsed(subscripts, shapes)
    sizes = _sizes(subscripts, terms, shapes)
    return terms, output, sizes, _order(",".join(terms) + "->" + output, shapes)


def _parsed(subscripts: str, shapes: Shapes) -> tuple[tuple[str, ...], str]:
    """The letters of each operand and of the output; an ellipsis is spelled out in new letters."""
    text = subscripts.replace(" ", "")
    left, arrow, output = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        raise ValueError(f"einsum {subscripts!r} names {len(terms)} operands and was given "
                         f"{len(shapes)}")
    named = set(text.replace("->", "", 1).replace("...", "").replace(",", ""))
    if not all(k.isalpha() for k in named):
        raise ValueError(f"einsum {subscripts!r}: wanted letters, commas, '...' and at most one "
                         "'->'")
    extra = [len(shape) - len(term.replace("...", "")) if "..." in term else 0
             for term, shape in zip(terms, shapes, strict=True)]
    spare = [k for k in map(chr, range(192, 1200)) if k.isalpha() and k not in named]
    dots = "".join(spare[:max(0, *extra)])
    spelled = tuple(term.replace("...", dots[len(dots) - max(0, n):])
                    for term, n in zip(terms, extra, strict=True))
    for term, letters, n, shape in zip(terms, spelled, extra, shapes, strict=True):
        if n < 0 or len(letters) != len(shape) or term.count("...") > 1:
            raise ValueError(f"einsum {subscripts!r}: {term!r} does not fit an operand of shape "
                             f"{shape}; wanted a letter per axis")
    if arrow:
        output = output.replace("...", dots, 1)
    else:
        every = "".join(terms).replace("...", "")
        output = dots + "".join(sorted(k for k in named if every.count(k) == 1))
    if len(set(output)) < len(output) or not set(output) <= set("".join(spelled)):
        raise ValueError(f"einsum {subscripts!r}: wanted an output with letters of the operands, "
                         "each at most once")
    return spelled, output


def _sizes(subscripts: str, terms: tuple[str, ...], shapes: Shapes) -> dict[str, int]:
    """The size of each letter; an axis of size 1 broadcasts."""
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for letter, size in zip(term, shape, strict=True):
            known = sizes.setdefault(letter, size)
            if known == 1:
                sizes[letter] = size
            elif size not in (1, known):
                raise ValueError(f"einsum {subscripts!r} of shapes "
                                 f"{', '.join(map(str, shapes))}: an axis of size {size} goes with "
                                 f"one of size {known}; wanted equal sizes, or 1")
    return sizes


def _order(subscripts: str, shapes: Shapes) -> Pairs:
    """Which operands to contract, step by step; the result goes to the end of the list."""
    if len(shapes) < 3:
        return ((0, 1),) * (len(shapes) - 1)
    from opt_einsum import contract_path  # type: ignore[import-untyped]  # late: slow to import

    path, _ = contract_path(subscripts, *shapes, shapes=True)
    return tuple(tuple(pair) for pair in path)


# -- one operand -----------------------------------------------------------------------------------


def _permuted(x: Tensor, letters: str, wanted: str) -> Tensor:
    """x with its axes in another order."""
    return x if letters == wanted else permute_dims(x, [letters.index(k) for k in wanted])


def _shaped(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return x if x.shape == shape else reshape(x, shape)


def _simple(x: Tensor, letters: str, sizes: dict[str, int]) -> tuple[Tensor, str]:
    """x without repeated letters, and without axes that are only repeated."""
    for letter in sorted(set(letters)) if len(set(letters)) < len(letters) else ():
        while letters.count(letter) > 1:
            first = letters.index(letter)
            second = letters.index(letter, first + 1)
            rest = [i for i in range(x.ndim) if i not in (first, second)]
            size = max(x.shape[first], x.shape[second])
            block = permute_dims(x, [*rest, first, second])
            x = diagonal(broadcast_to(block, (*block.shape[:-2], size, size)))
            letters = "".join(letters[i] for i in rest) + letter
    repeated = [i for i, k in enumerate(letters) if x.shape[i] == 1 and sizes[k] != 1]
    if repeated:
        x = reshape(x, tuple(n for i, n in enumerate(x.shape) if i not in repeated))
        letters = "".join(k for i, k in enumerate(letters) if i not in repeated)
    return x, letters


def _summed(x: Tensor, letters: str, needed: set[str]) -> tuple[Tensor, str]:
    """x summed over the axes that no other operand and not the output has."""
    gone = tuple(i for i, k in enumerate(letters) if k not in needed)
    if not gone:
        return x, letters
    return total(x, gone, dtype=x.dtype), "".join(k for k in letters if k in needed)


# -- two operands ----------------------------------------------------------------------------------


def _contracted(chosen: list[tuple[Tensor, str]], needed: set[str]) -> tuple[Tensor, str]:
    """The operands as one; more than two (an outer product of the path's) from the left."""
    x, letters = chosen[0]
    for n, (y, others) in enumerate(chosen[1:], 2):
        later = needed.union(*(rest for _, rest in chosen[n:]))
        x, letters = _pair(x, letters, y, others, later)
    return x, letters


def _pair(
    x1: Tensor, letters1: str, x2: Tensor, letters2: str, needed: set[str]
) -> tuple[Tensor, str]:
    """(batch, rows, inner) by (batch, inner, columns): one matrix product."""
    x1, letters1 = _summed(x1, letters1, needed.union(letters2))
    x2, letters2 = _summed(x2, letters2, needed.union(letters1))
    batch = "".join(k for k in letters1 if k in letters2 and k in needed)
    inner = "".join(k for k in letters1 if k in letters2 and k not in needed)
    rows = "".join(k for k in letters1 if k not in letters2)
    columns = "".join(k for k in letters2 if k not in letters1)
    left = _permuted(x1, letters1, batch + rows + inner)
    right = _permuted(x2, letters2, batch + inner + columns)
    lead, below = left.shape[:len(batch)], left.shape[len(batch):len(batch) + len(rows)]
    beside = right.shape[len(batch) + len(inner):]
    if not inner:
        left = _shaped(left, (*lead, *below, *(1,) * len(columns)))
        right = _shaped(right, (*lead, *(1,) * len(rows), *beside))
        return multiply(left, right), batch + rows + columns
    depth = prod(left.shape[len(batch) + len(rows):])
    first = _shaped(left, (*_one(lead), prod(below), depth))
    second = _shaped(right, (*_one(lead), depth, prod(beside)))
    return _shaped(matmul(first, second), (*lead, *below, *beside)), batch + rows + columns


def _one(lead: tuple[int, ...]) -> tuple[int, ...]:
    """All batch axes as one, or none."""
    return (prod(lead),) if lead else ()
