"""Broken attention on tensor cores is caught on the CPU, each fault by the check meant for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import kernel_plants
import numpy as np
import pytest
from cases_attention import attention, gradients
from cases_cached import attend, store
from kernel_cases import DTYPES, Case
from kernel_host import HostMachine, KernelFault, Toolchain, write_back
from kernel_plants import Plant
from kernel_races import Recorder
from kernel_toolchain import FIBERS, THREADS, Build

from gtensor.backend import kernels

FORWARD, BACKWARD = "attention.cu", "attention_backward.cu"
FLOAT, FLOAT_BACKWARD = "attention_float.cu", "attention_float_backward.cu"
TF32, TF32_BACKWARD = "attention_tf32.cu", "attention_tf32_backward.cu"
TERMS, TERMS_BACKWARD = "attention_terms.cu", "attention_terms_backward.cu"
MASK, FLOAT_MASK = "attention_mask_gradient.cu", "attention_float_mask_gradient.cu"
CACHED = "attention_cached.cu"
LARGEST = "attention_backward.cu of 256 features"
SOURCES = {LARGEST: BACKWARD}  # else the name is that of the file
KINDS = {FORWARD: "halves", BACKWARD: "halves", FLOAT: "float32", FLOAT_BACKWARD: "float32",
         TF32: "tf32", TF32_BACKWARD: "tf32"}
TYPES = {file: "float32" if KINDS.get(file, "halves") != "halves" else "float16"
         for file in (*KINDS, TERMS, TERMS_BACKWARD, MASK, CACHED, LARGEST)}
TYPES[FLOAT_MASK] = "float32"
FUNCTIONS = {
    FORWARD: ["forward_64"],
    BACKWARD: ["backward_queries_64", "backward_keys_64"],
    TERMS: ["terms_forward_64"],
    TERMS_BACKWARD: ["terms_backward_queries_64", "terms_backward_keys_64"],
    MASK: ["mask_gradient_64"],
    FLOAT_MASK: ["mask_gradient_128"],
    LARGEST: ["backward_queries_256", "backward_keys_256"],
    CACHED: ["cached_64", "cached_combine", "cached_store"],
}
for _file in (FLOAT, TF32):
    FUNCTIONS[_file] = FUNCTIONS[FORWARD] + FUNCTIONS[TERMS]
for _file in (FLOAT_BACKWARD, TF32_BACKWARD):
    FUNCTIONS[_file] = FUNCTIONS[BACKWARD] + FUNCTIONS[TERMS_BACKWARD]
KERNELS = {file: [f"attention_{name}<{kernels.C_TYPES[TYPES[file]]}>" for name in names]
           for file, names in FUNCTIONS.items()}
TEXTS = {file: kernels.source(SOURCES.get(file, file)) for file in KERNELS}
RACE, OVERFLOW, NAN = "ThreadSanitizer: data race", "heap-buffer-overflow", "nan"
MISALIGNED = "misaligned address"
UNWAITED = "a thread ends before it has waited for its copies"


def _forward_cases(kind: str) -> list[Case]:
    run = partial(attention, kind=kind)
    return [
        run("causal", (), 140, 150, 24, 40, causal=True),
        run("tails", (1,), 20, 150, 40, 24, layout="side by side"),
        run("heads", (2, 2), 5, 9, 24, 40, key_lead=(2, 1)),
    ]


def _terms_cases(kind: str) -> list[Case]:
    run = partial(attention, kind=kind)
    return [
        run("mask", (2, 2), 20, 9, 8, mask=(2, 1, 20, 9)),
        run("sum", (2,), 20, 9, 8, mask=(2, 20, 9), boolean=False),
        run("dropout", (2,), 20, 72, 8, p=0.4),
        run("wide-mask", (2,), 20, 72, 8, mask=(2, 20, 72)),
        run("wide-sum", (2,), 20, 72, 8, mask=(2, 20, 72), boolean=False),
        run("for-all-queries", (), 20, 75, 8, mask=(1, 75), boolean=False),
    ]


def _backward_cases(kind: str) -> list[Case]:
    run = partial(gradients, kind=kind)
    large = {"halves": 30.0, "float32": 3.0}
    return [
        run("causal", (), 140, 300, 24, 40, causal=True),
        run("tails", (1,), 70, 75, 40, 24, layout="side by side"),
        run("heads", (2, 2), 5, 9, 24, 40, key_lead=(2, 1)),
        *[run("large-scores", (), 40, 1, 8, scale=large[kind]) for _ in range(kind in large)],
    ]


def _terms_backward_cases(kind: str) -> list[Case]:
    run = partial(gradients, kind=kind)
    return [
        run("mask", (2, 2), 20, 9, 8, mask=(2, 1, 20, 9)),
        run("sum", (2,), 20, 9, 8, mask=(2, 20, 9), boolean=False),
        run("dropout", (2,), 20, 72, 8, p=0.4),
        run("wide-mask", (2,), 40, 72, 8, mask=(2, 40, 72)),
        run("wide-sum", (2,), 40, 72, 8, mask=(2, 40, 72), boolean=False),
    ]


CASES = {
    FORWARD: _forward_cases("halves"),
    BACKWARD: _backward_cases("halves"),
    TERMS: _terms_cases("halves"),
    TERMS_BACKWARD: [
        *_terms_backward_cases("halves"),
        gradients("far-values", (), 40, 72, 8, mask=(40, 72), boolean=False, wanted="k",
                  offset=64.0),
    ],
    MASK: [
        gradients("sum", (2, 2), 20, 75, 8, 16, mask=(2, 1, 20, 75), boolean=False, wanted="m"),
        gradients("sum-of-keys", (2,), 70, 20, 8, mask=(1, 20), boolean=False, wanted="m"),
        gradients("sum-of-queries", (2, 2), 20, 70, 8, mask=(2, 1, 20, 1), boolean=False,
                  wanted="m", key_lead=(1, 2)),
        gradients("dropout", (2,), 20, 72, 8, mask=(2, 20, 72), boolean=False, p=0.4, wanted="m"),
        gradients("causal", (), 20, 70, 8, mask=(20, 70), boolean=False, causal=True, wanted="m"),
    ],
    FLOAT_MASK: [gradients("sum", (), 20, 75, 68, mask=(20, 75), boolean=False, wanted="m",
                           kind="float32")],
    LARGEST: [gradients("largest", (), 20, 30, 136)],
    CACHED: [
        attend("wide", 2, 2, 3, 1, 150, 40),
        attend("odd", 1, 2, 2, 3, 140, 13, capacity=143),
        attend("in-memory", 1, 2, 1, 1, 70, 16, capacity=300, in_memory=True),
        store("rotary", 2, 2, 3, 2, 7, 40),
        store("plain", 2, 2, 1, 3, 4, 33, rotary=False),
        attend("many-heads", 90, 3, 1, 1, 140, 8),
    ],
    **{file: _forward_cases(KINDS[file]) + _terms_cases(KINDS[file]) for file in (FLOAT, TF32)},
    **{file: _backward_cases(KINDS[file]) + _terms_backward_cases(KINDS[file])
       for file in (FLOAT_BACKWARD, TF32_BACKWARD)},
}
RACED = {
    **{file: [gradients("raced", (), 20, 150, 8, causal=True, kind=kind)
              if "backward" in file else attention("raced", (), 20, 150, 8, kind=kind)]
       for file, kind in KINDS.items()},
    TERMS: [attention("raced", (), 20, 152, 8, mask=(20, 152), boolean=False, p=0.4)],
    TERMS_BACKWARD: [gradients("raced", (), 20, 152, 8, mask=(20, 152), p=0.4)],
    MASK: [gradients("raced", (), 70, 20, 8, mask=(1, 20), boolean=False, wanted="m")],
    FLOAT_MASK: [gradients("raced", (), 20, 40, 68, mask=(20, 1), boolean=False, wanted="m",
                           kind="float32")],
    LARGEST: [gradients("raced", (), 20, 30, 136, causal=True)],
    CACHED: [attend("raced", 1, 1, 1, 1, 70, 16)],
}


@dataclass(frozen=True)
class Fault:
    """One change of a text, and what has to notice it."""

    old: str
    new: str
    caught_by: str | type[Exception] = AssertionError
    build: Build = FIBERS
    file: str = FORWARD


def _wait_before(barrier: str, new: str, file: str = FORWARD) -> tuple[str, str]:
    """The last wait before a barrier, whose comment names it, replaced."""
    text = TEXTS[file]
    at = text.index(f"__syncthreads();  // {barrier}")
    start = text.rindex("copies.wait<", 0, at)
    whole = text[start:at + 30 + len(barrier)]
    return whole, new + whole[len("copies.wait<1>();"):]


FIRST, VALUES_THERE, NEXT = "queries and keys", "the values are there", "the next keys"


def _barrier(which: str) -> str:
    return f"__syncthreads();  // {which}"


FAULTS = {
    "no wait for queries": Fault(*_wait_before(FIRST, ""), NAN),
    "no wait for values": Fault(*_wait_before(VALUES_THERE, ""), NAN),
    "no wait for the next keys": Fault(*_wait_before(NEXT, ""), NAN),
    "a wait for values that leaves two groups": Fault(
        *_wait_before(VALUES_THERE, "copies.wait<2>();"), NAN),
    "no commit of the next keys": Fault(
        "(stage ^ 1) * keys * D);\n      copies.commit();\n\n", "(stage ^ 1) * keys * D);\n", NAN),
    "no barrier before queries and keys are read": Fault(_barrier(FIRST), "//", RACE, THREADS),
    "no barrier before values are read": Fault(_barrier(VALUES_THERE), "//", RACE, THREADS),
    "no barrier before the next keys are read": Fault(_barrier(NEXT), "//", RACE, THREADS),
    "no warp barrier before rows are written": Fault("__syncwarp();", "", RACE, THREADS),
    "keys come into the stage in use": Fault("key_tiles + (stage ^ 1)", "key_tiles + stage", NAN),
    "values come into the stage in use": Fault("value_tiles + (stage ^ 1)", "value_tiles + stage",
                                               NAN),
    "values of another stage": Fault("scores, value_tiles + stage",
                                     "scores, value_tiles + (stage ^ 1)"),
    "a query's row is another one": Fault("transposed + threadIdx.x / 32 * 16",
                                          "transposed + threadIdx.x / 32 * 8"),
    "pieces of keys exchanged otherwise": Fault("lane % 8 ^ lane / 8 % 2", "lane % 8 ^ lane / 16"),
    "pieces of queries not exchanged": Fault("(first + row) % 8, piece", "0, piece"),
    "keys loaded transposed": Fault("gt_load_fragment(b", "gt_load_fragment_transposed(b"),
    "values loaded plain": Fault("gt_load_fragment_transposed(b", "gt_load_fragment(b"),
    "fragments of keys in another order": Fault("a[m], b[0], b[1]", "a[m], b[0], b[2]"),
    "weights in another order": Fault("factors[m][2 * i + part / 2][part % 2 * 2]",
                                      "factors[m][2 * i + part % 2][part / 2 * 2]"),
    "a causal edge one too early": Fault("row + m * 16 + half * 8 + 1)",
                                         "row + m * 16 + half * 8)"),
    "a causal edge one too late": Fault("row + m * 16 + half * 8 + 1)",
                                        "row + m * 16 + half * 8 + 2)"),
    "a tile at the edge that is not masked": Fault("origin + keys > begin + 1",
                                                   "origin + keys > begin + 49"),
    "keys skipped that are seen": Fault("min(key_count, first + queries)",
                                        "min(key_count, first + queries - 64)"),
    "keys behind the last one": Fault("origin + keys > key_count ||", ""),
    "rows behind the last one are read": Fault("inside && first + row < left",
                                                 "inside && first + row < left + 64", OVERFLOW),
    "features behind the last one are read": Fault("inside(piece * gt_width<T> < features)",
                                                   "inside(features > 0)", OVERFLOW),
    "rows behind the last one are written": Fault("at < count", "at < count + 64", OVERFLOW),
    "features behind the last one are written": Fault(
        "piece * width < features)", "piece * width < features + 64)", OVERFLOW),
    "logarithms behind the last one": Fault("&& at_row < query_count", "", OVERFLOW),
    "sums that do not shrink": Fault("sums[m][n][2 * half] *= shrunk;", ""),
    "a total that does not shrink": Fault("fmaf(total[m][half], shrunk, sum)",
                                          "total[m][half] + sum"),
    "a total of one lane": Fault("sum += __shfl_xor_sync(0xffffffffu, sum, 2);", ""),
    "a largest score of one lane": Fault(
        "most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));", ""),
    "a shuffle that some lanes leave out": Fault(
        "most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));",
        "if (lane > 3) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));",
        "divergent shuffle or vote"),
    "all matrices of the first head": Fault("rest /= length;", "rest = 0;"),
    "values where the keys of a head lie": Fault("v += at * lead.v", "v += at * lead.k"),
    "logarithms of another base": Fault("0.693147180559945309f", "1.0f"),
}


def _terms(*fault: Any) -> Fault:
    return Fault(*fault, file=TERMS)


TERMS_FAULTS = {
    "no barrier before queries and keys are read": _terms(_barrier(FIRST), "//", RACE, THREADS),
    "no barrier before the next keys are read": _terms(_barrier(NEXT), "//", RACE, THREADS),
    "a row of the mask too far": _terms(
        "query * static_cast<int>(space.rows.mask)",
        "(query + 1) * static_cast<int>(space.rows.mask)", OVERFLOW),
    "a key of the mask too far": _terms(
        "key * static_cast<int>(space.key_step)", "(key + 1) * static_cast<int>(space.key_step)",
        OVERFLOW),
    "the mask of the first matrix": _terms("mask += at * space.lead[axis].mask", "mask += 0"),
    "a mask along another axis": _terms("at * space.lead[axis].mask", "at * space.lead[0].mask"),
    "rows of the mask behind the last one": _terms(
        "query >= static_cast<int>(space.rows.length)", "query < 0", OVERFLOW),
    "keys of the mask behind the last one": _terms(
        "key >= static_cast<int>(space.keys)", "key < 0", OVERFLOW),
    "eight keys at once behind the last one": _terms(
        "key + 8 <= static_cast<int>(space.keys)", "key < static_cast<int>(space.keys)", OVERFLOW),
    "eight keys at once that are not aligned": _terms("space.wide && key", "key", MISALIGNED),
    "a mask whose False takes part": _terms(
        "&& mask[place(query, key + i)]", "&& !mask[place(query, key + i)]"),
    "a mask whose bytes are 1 alone": _terms("0x7f7f7f7fu) | word)", "0x7f7f7f7fu))"),
    "bytes in another order": _terms("0x10204080u", "0x80402010u"),
    "the second four keys of eight at once are the first": _terms(
        "gt_bytes_set(bytes.y)", "gt_bytes_set(bytes.x)"),
    "a mask of the rows eight before": _terms("seen(row + 8, eighth)", "seen(row, eighth)"),
    "a mask of another lane's keys": _terms("own, i, 4) >> quarter * 2", "own, i, 4)"),
    "a mask of another eighth": _terms("own, i, 4)", "own, i ^ 1, 4)"),
    "a sum that is scaled": _terms("+= value(added", "+= scale * value(added"),
    "a sum of the rows eight before": _terms("at(row + half * 8,", "at(row,"),
    "a sum of the keys 32 before": _terms("at(row + half * 8, origin / 8 + first",
                                          "at(row + half * 8, origin / 8"),
    "pairs of a sum that are turned otherwise": _terms("upper ? low : high", "upper ? high : low"),
    "a sum of halves in another order": _terms("bits << i % 2 * 16;", "bits << (i + 1) % 2 * 16;"),
    "dropout of the first matrix": _terms("number * space.rows.length + query", "query"),
    "dropout of the row before": _terms("number * space.rows.length + query",
                                        "number * space.rows.length + query - 1"),
    "dropout of the eight keys before": _terms("(space.keys / 8) + eighth",
                                               "(space.keys / 8) + eighth - 1"),
    "dropout of another seed": _terms("dropout.seed,", "dropout.seed + 1,"),
    "dropout's words in another order": _terms("words[i / 2] >> i % 2 * 32",
                                               "words[i % 4] >> i / 4 * 32"),
    "dropout drawn for another lane": _terms("drawn, n % 4, 4)", "drawn, (n + 1) % 4, 4)"),
    "dropout of the rows eight further on": _terms("+ m) * 2 + e / 2) * 8", "+ m) * 2) * 8"),
    "weights that are kept do not grow": _terms("? dropout.factor", "? 1.0f"),
    "dropped weights missing in the sums": _terms("(words[i / 2] >>", "0 * (words[i / 2] >>"),
    "a largest score without its mask": _terms(
        "none ? 0.0f : Terms::exponent(top[m][half], scale);", "0.0f;"),
}


def _backward(*fault: Any) -> Fault:
    return Fault(*fault, file=BACKWARD)


def _race(line: str) -> Fault:
    return _backward(line, "//", RACE, THREADS)


QUERIES_THERE, KEYS_THERE, NEXT_QUERIES, NO_QUERIES = (
    "queries and what arrived", "the keys and values", "the queries are there",
    "keys and values are there, also")

BACKWARD_FAULTS = {
    "no wait for queries": _backward(*_wait_before(QUERIES_THERE, "", BACKWARD), NAN),
    "no wait for keys and values": _backward(
        *_wait_before(KEYS_THERE, "", BACKWARD), UNWAITED),
    "no wait for the next queries": _backward(*_wait_before(NEXT_QUERIES, "", BACKWARD), NAN),
    "no wait where no query comes": _backward(
        *_wait_before(NO_QUERIES, "", BACKWARD), UNWAITED),
    "a wait for queries that leaves two groups": _backward(
        *_wait_before(QUERIES_THERE, "copies.wait<2>();", BACKWARD), NAN),
    "no barrier before queries are read": _race(_barrier(QUERIES_THERE)),
    "no barrier before keys and values are read": _race(_barrier(KEYS_THERE)),
    "no barrier before the next queries are read": _race(_barrier(NEXT_QUERIES)),
    "no barrier where no query comes": _race(_barrier(NO_QUERIES)),
    "no warp barrier before rows are written": _race("__syncwarp();"),
    "keys come into the stage in use": _backward(
        "key_tiles + (stage ^ 1)", "key_tiles + stage", NAN),
    "queries come into the stage in use": _backward(
        "fetch(step - 1, stage ^ 1", "fetch(step - 1, stage", NAN),
    "values of another stage": _backward(
        "value_tiles + stage * passing", "value_tiles + (stage ^ 1) * passing"),
    "numbers of another stage": _backward(
        "passing_numbers[stage]", "passing_numbers[stage ^ 1]"),
    "a fragment's row is another one": _backward("lane % 16 * D + (", "lane % 8 * D + ("),
    "the second rows of a warp are the first ones": _backward(
        "even_piece(tile, own, step * 2) + m * 16 * D", "even_piece(tile, own, step * 2)"),
    "pieces exchanged otherwise": _backward("lane % 8 ^ lane / 8 % 2", "lane % 8 ^ lane / 16"),
    "rows loaded transposed": _backward(
        "gt_load_fragment(b", "gt_load_fragment_transposed(b"),
    "transposed rows loaded plain": _backward(
        "gt_load_fragment_transposed(b", "gt_load_fragment(b"),
    "fragments in another order": _backward("a[m], b[0], b[1]", "a[m], b[0], b[2]"),
    "factors in another order": _backward(
        "factors[m][2 * i + part / 2][part % 2 * 2]", "factors[m][2 * i + part % 2][part / 2 * 2]"),
    "a causal edge one too early": _backward("causal ? begin + 1 :", "causal ? begin :"),
    "a causal edge one too late": _backward("causal ? begin + 1 :", "causal ? begin + 2 :"),
    "a causal edge of keys one too early": _backward(
        "- e / 2 * 8 < hidden", "- e / 2 * 8 <= hidden"),
    "a causal edge of keys one too late": _backward(
        "- e / 2 * 8 < hidden", "- e / 2 * 8 + 1 < hidden"),
    "a tile at the edge that is not masked": _backward(
        "origin + passing > min(key_count, edge)", "origin + passing > min(key_count, edge + 31)"),
    "a tile at the edge of keys that is not masked": _backward(
        "origin < begin + warp_rows - 1", "origin < begin"),
    "a warp skips keys that it sees": _backward(
        "origin >= edge + warp_rows - 1", "origin >= edge - 1"),
    "a warp skips queries that see it": _backward(
        "origin + passing <= begin", "origin + passing <= begin + warp_rows"),
    "keys skipped that are seen": _backward(
        "min(key_count, first + owned)", "min(key_count, first + owned - 64)"),
    "queries skipped that see": _backward(
        "causal ? first / passing : 0", "causal ? first / passing + 1 : 0"),
    "keys behind the last one": _backward(
        "min(key_count, edge + lane / 4 + m * 16 + half * 8)",
        "edge + lane / 4 + m * 16 + half * 8", NAN),
    "rows behind the last one are read": _backward(
        "inside && first + row < left", "inside && first + row < left + 64", OVERFLOW),
    "features behind the last one are read": _backward(
        "inside(piece * gt_width<T> < features)", "inside(features > 0)", OVERFLOW),
    "outputs behind the last one are read": _backward(
        "row < query_count && piece * width", "piece * width", OVERFLOW),
    "rows behind the last one are written": _backward("at < count", "at < count + 64", OVERFLOW),
    "features behind the last one are written": _backward(
        "piece * width < features)", "piece * width < features + 64)", OVERFLOW),
    "a delta of one lane": _backward("other < pieces; other", "other < 1; other"),
    "a sum that is not used": _backward("log2f(total)", "0 * total"),
    "logarithms of another base": _backward("1.44269504088896341f", "1.0f"),
    "values that differ less": _backward("(changes[m][n][e] - known[m][e / 2].delta)",
                                         "changes[m][n][e]"),
    "the first of matrices that share keys alone": _backward("repeat < repeats", "repeat < 1"),
    "numbers of the first matrix that shares keys": _backward(
        "(matrix + repeat) * (padded /", "(matrix) * (padded /"),
    "all matrices of the first head": _backward("matrix /= length;\n      q +=",
                                                "matrix = 0;\n      q +="),
    "gradients of values where those of keys lie": _backward("dv += at * lead.dv",
                                                             "dv += at * lead.dk"),
}


LARGEST_FAULTS = {
    "the gradient of keys twice": Fault("blockIdx.x % 2 == 0", "blockIdx.x % 2 < 2", file=LARGEST),
    "keys of another block": Fault("both ? blockIdx.x / 2 :", "both ? blockIdx.x :", file=LARGEST),
    "keys without their values": Fault(
        "if constexpr (of_keys)\n      gt_tile", "if constexpr (of_values)\n      gt_tile",
        NAN, file=LARGEST),
}


def _terms_backward(*fault: Any) -> Fault:
    return Fault(*fault, file=TERMS_BACKWARD)


TERMS_BACKWARD_FAULTS = {
    "no barrier before keys and values are read": _terms_backward(
        _barrier(KEYS_THERE), "//", RACE, THREADS),
    "no barrier before the next queries are read": _terms_backward(
        _barrier(NEXT_QUERIES), "//", RACE, THREADS),
    "dropout drawn for other queries": _terms_backward(
        "terms.kept(origin + lane", "terms.kept(origin"),
    "dropout drawn for other keys": _terms_backward("begin / 8 + i)", "begin / 8)"),
    "dropout of another lane's keys": _terms_backward(">> lane / 4;", ";"),
    "dropout of another lane's queries": _terms_backward(
        "drawn, n * 8 + lane % 4 * 2 + e)", "drawn, n * 8 + lane % 4 * 2)"),
    "dropped weights in the gradient of values": _terms_backward(
        "weights[m][n][e] *= terms.factor", "weights[m][n][e] += 0 * terms.factor"),
    "changes through dropped weights": _terms_backward(
        "changes[m][n][e] *=\n", "changes[m][n][e] += 0 *\n"),
    "changes of keys through dropped weights": _terms_backward(
        "changes[m][n][e] *= terms.factor(kept[e % 2]",
        "changes[m][n][e] += 0 * terms.factor(kept[e % 2]"),
    "dropout of queries drawn for another lane": _terms_backward(
        "drawn, n, 4)", "drawn, n ^ 1, 4)"),
    "dropout of queries eight further on": _terms_backward(
        "terms.kept(begin + lane / 4 + i * 8", "terms.kept(begin + lane / 4"),
    "the mask of the first matrix of keys": _terms_backward(
        "terms.enter(matrix + repeat)", "terms.enter(0)"),
    "the mask of the first matrix of queries": _terms_backward(
        "terms.enter(matrix);", "terms.enter(0);"),
    "a gradient of another base": _terms_backward(
        "Terms::keeps_largest ? scale :", "false ? scale :"),
    "a largest score that is not used": _terms_backward("score - largest", "score"),
    "the mask of the first rows of a warp": _terms_backward(
        "begin + lane / 4 + m * 16, origin)", "begin + lane / 4, origin)"),
    "a mask of keys eight before": _terms_backward("eighth + 1) << 8", "eighth) << 8"),
    "a mask of another lane's key": _terms_backward(
        "own, i * 8 + quarter * 2 + e) >> group;", "own, i * 8 + quarter * 2 + e);"),
    "a mask of the query before": _terms_backward(
        "own, i * 8 + quarter * 2 + e)", "own, i * 8 + quarter * 2)"),
    "a sum of keys eight before": _terms_backward("group, eighth + half)", "group, eighth)"),
    "a sum of the query before": _terms_backward(
        "(quarter * 2 + e) * 4 + group / 2", "quarter * 2 * 4 + group / 2"),
    "a sum of the key before": _terms_backward("value(word, group % 2)", "value(word, 0)"),
    "a sum of queries that were not turned": _terms_backward(
        "at(query + quarter * 8 + group,", "at(query + quarter + group,"),
    "a delta that lacks what the output has lost": _terms_backward(
        "known[m][half].delta += sum;", ""),
    "a delta with what one lane's keys lack": _terms_backward(
        "sum += __shfl_xor_sync(0xffffffffu, sum, 2);", ""),
    "a delta with what the other half's rows lack": _terms_backward(
        "lacking[m][e / 2] +=", "lacking[m][e % 2] +="),
    "numbers of the rows eight before": _terms_backward(
        "lane / 4 + half * 8] = known[m][half];", "lane / 4] = known[m][half];"),
    "no numbers where no gradient of queries is wanted": _terms_backward(
        "if (!dq && !of_mask)", "if (!dq)"),
    "gradients of queries that are not wanted": _terms_backward(
        "if (!dq) return;", "", "null pointer"),
}


def _mask(*fault: Any) -> Fault:
    return Fault(*fault, file=MASK)


MASK_FAULTS = {
    "no wait for the tiles": _mask(*_wait_before("the tiles are there", "", MASK), UNWAITED),
    "no barrier before the tiles are read": _mask(
        _barrier("the tiles are there"), "//", RACE, THREADS),
    "no barrier before the next tiles come": _mask(
        _barrier("the tiles before these"), "//", RACE, THREADS),
    "no barrier before the warps' sums are read": _mask(
        _barrier("the sums of all warps"), "//", RACE, THREADS),
    "the first of matrices that share a mask alone": _mask("repeat < repeats", "repeat < 1"),
    "the first tile of queries alone": _mask(
        "one_query ? query_tiles : 1", "one_query ? query_tiles / 2 : 1"),
    "the first tile of keys alone": _mask(
        "one_key ? key_tiles : 1", "one_key ? key_tiles / 2 : 1"),
    "keys behind the last one": _mask("n * 8 + e < seen", "n * 8 + e < seen + 64"),
    "a causal edge one too late": _mask("row + half * 8 + 1)", "row + half * 8 + 2)"),
    "numbers of the first matrix": _mask("from_numbers += at * lead.numbers", "from_numbers += 0"),
    "numbers of the row eight before": _mask("[row + half * 8];", "[row];"),
    "values that differ less": _mask("- known.delta)", "- 0)"),
    "changes through dropped weights": _mask(
        "changes[0][n][e] *= terms.factor", "changes[0][n][e] += 0 * terms.factor"),
    "the gradient of the first matrix": _mask("place += at * lead.dmask", "place += 0"),
    "rows behind the last one are written": _mask("row < query_count && key", "key", OVERFLOW),
    "keys behind the last one are written": _mask("&& key < keys)", "&& key < 80)", OVERFLOW),
    "sums of keys behind the last one are written": _mask(
        "key >= min(keys, passing)", "key >= max(keys, passing)", OVERFLOW),
    "a sum of one lane's keys": _mask("sum += __shfl_xor_sync(0xffffffffu, sum, 2);", ""),
    "a sum of half of the queries": _mask("other = 4; other < 32", "other = 4; other < 16"),
    "a sum of the first warp": _mask("sum += of_warps[i][key]", "sum += of_warps[0][key]"),
    "a fragment's row is another one": _mask("threadIdx.x / 32 * 16 * M * D", "0"),
    "float32: half of the features alone": Fault(
        "sums[0][n][e] + found", "found", file=FLOAT_MASK),
    "float32: keys of another tile": Fault(
        "origin = from_key * passing", "origin = from_key * owned", file=FLOAT_MASK),
}


def _cached(*fault: Any) -> Fault:
    return Fault(*fault, file=CACHED)


CACHED_FAULTS = {
    "no barrier before the teams meet": _cached(
        _barrier("what the teams have found"), "//", RACE, THREADS),
    "keys behind the last one": _cached(
        "base + u * teams < seen[r] ? score", "base + u * teams < seen[r] + 99 ? score"),
    "a query sees one key too many": _cached("(space.group) + 1);", "(space.group) + 2);"),
    "keys of the first split": _cached("begin = blockIdx.y *", "begin = 0 *"),
    "keys of the first head": _cached("keys += head *", "keys += 0 *"),
    "queries of the first head": _cached("head % kv_heads * space.group", "0"),
    "queries of the first position": _cached("+ row / group;", ";"),
    "queries of the first four rows": _cached("blockIdx.z * rows;", "0;"),
    "a score of half a team": _cached("other < lanes;", "other < lanes / 2;"),
    "a score of another scale": _cached("query[r][i] *= scale", "query[r][i] *= 2 * scale"),
    "sums that do not shrink": _cached("sums[r][i] *= shrunk;", ";"),
    "a total that does not shrink": _cached("total[r] *= shrunk;", ""),
    "what the first team has added up": _cached("t < teams; ++t) sum", "t < 1; ++t) sum"),
    "what the first team has mixed": _cached("t < teams; ++t)\n          found",
                                             "t < 1; ++t)\n          found"),
    "splits that are not weighed": _cached(
        "parts[s * each + f] * exp2f(parts[s * each + features] - origin)", "parts[s * each + f]"),
    "sums of splits that are not weighed": _cached(
        "features + 1] * exp2f(parts[s * each + features] - origin)", "features + 1]"),
    "features behind the last one": _cached(
        "if (feature(i + w) < features) pack", "pack", OVERFLOW),
    "16 bytes that are not aligned": _cached("there && wide &&", "there &&", MISALIGNED),
    "the position of the launch instead of that in memory": _cached("at ? *at : start", "start"),
    "splits of a full cache": _cached("splits = (known - 1) / gt_cached_keys(space, known) + 1;",
                                      "splits = static_cast<int>(space.most);"),
    "stored from the first position on": _cached(
        "position = start + row %", "position = row %"),
    "stored for the first sequence": _cached("row / space.length * space.kv_heads +", ""),
    "stored for the first head": _cached("(head - queries) % space.kv_heads", "0"),
    "values among keys": _cached("(head < turned ? keys : values)", "keys"),
    "values that are turned": _cached("head < turned) {", "true) {"),
    "queries that are not turned": _cached("= table ? 0 : queries", "= queries"),
    "turned in the other sense": _cached("old * c - y * s", "old * c + y * s"),
    "turned by the angles of the first position": _cached(
        "table + position * half", "table + 0 * half"),
    "the cosine in place of the sine": _cached("angle[places * half]", "angle[0]"),
    "stored behind the last feature": _cached(
        "feature + half < space.features", "true", OVERFLOW),
}


def _float(*fault: Any) -> Fault:
    return Fault(*fault, file=FLOAT)


def _float_backward(*fault: Any) -> Fault:
    return Fault(*fault, file=FLOAT_BACKWARD)


FLOAT_FAULTS = {
    "no wait for queries": _float(*_wait_before(FIRST, "", FLOAT), NAN),
    "no wait for values": _float(*_wait_before(VALUES_THERE, "", FLOAT), NAN),
    "no barrier before values are read": _float(_barrier(VALUES_THERE), "//", RACE, THREADS),
    "no barrier before the next keys are read": _float(_barrier(NEXT), "//", RACE, THREADS),
    "no warp barrier before rows are written": _float("__syncwarp();", "", RACE, THREADS),
    "a warp's rows are another one's": _float(
        "threadIdx.x / 32 * 16 * M + g) * D", "threadIdx.x / 32 * 16 + g) * D"),
    "the rows eight further on are the first ones": _float(
        "four(row + (m * 16 + half * 8) * D", "four(row + m * 16 * D"),
    "the second rows of a warp are the first ones": _float(
        "four(row + (m * 16 + half * 8) * D", "four(row + half * 8 * D"),
    "the second key is the first one": _float("(n * 8 + t * 2 + e) * D", "(n * 8 + t * 2) * D"),
    "pieces of keys exchanged otherwise": _float("t * 2 + e, step", "t * 2, step"),
    "a feature left out": _float("a[m][half].w, b.w", "a[m][half].w, b.z"),
    "weights of another lane": _float("row % 8 / 2, 4)", "row % 4, 4)"),
    "weights of the key before": _float("half * 2 + row % 2]", "half * 2]"),
    "pieces of values not exchanged": _float("row % 8, n * 2 + t)", "0, n * 2 + t)"),
    "features of another lane": _float("gt_piece(row, g, n * 2 + t)", "gt_piece(row, g, n * 2)"),
    "a causal edge one too early": _float(
        "row + m * 16 + half * 8 + 1)", "row + m * 16 + half * 8)"),
    "a causal edge one too late": _float(
        "row + m * 16 + half * 8 + 1)", "row + m * 16 + half * 8 + 2)"),
    "a causal edge of the warp's first rows": _float(
        "row + m * 16 + half * 8 + 1)", "row + half * 8 + 1)"),
    "rows behind the last one are read": _float(
        "inside && first + row < left", "inside && first + row < left + 64", OVERFLOW),
    "rows behind the last one are written": _float("at < count", "at < count + 64", OVERFLOW),
    "logarithms behind the last one": _float("&& at_row < query_count", "", OVERFLOW),
    "dropout of the warp's first rows": _float("(n / 4 * M + m) * 2", "(n / 4 * M) * 2"),
    "a sum of the key before": _float("added.words[e % words][i]", "added.words[0][i]"),
    "the second four keys of eight at once are the first": _float(
        "(part * 4 + i) / words", "i / words"),
    "backward: no wait for the next queries": _float_backward(
        *_wait_before(NEXT_QUERIES, "", FLOAT_BACKWARD), "more copies on the way"),
    "backward: no barrier before keys and values are read": _float_backward(
        _barrier(KEYS_THERE), "//", RACE, THREADS),
    "backward: no barrier before the next queries are read": _float_backward(
        _barrier(NEXT_QUERIES), "//", RACE, THREADS),
    "backward: queries overwritten while they are read": _float_backward(
        "__syncwarp();  // the warp's queries", "{}", RACE, THREADS),
    "backward: a causal edge one too early": _float_backward(
        "causal ? begin + 1 :", "causal ? begin :"),
    "backward: a causal edge of keys one too late": _float_backward(
        "- e / 2 * 8 < hidden", "- e / 2 * 8 + 1 < hidden"),
    "backward: rows behind the last one are written": _float_backward(
        "at < count", "at < count + 64", OVERFLOW),
    "backward: outputs behind the last one are read": _float_backward(
        "row < query_count && piece * width", "piece * width", OVERFLOW),
    "backward: a sum of the key eight before": _float_backward("key + e / 2 * 8);", "key);"),
    "backward: a sum of the query before": _float_backward(
        "quarter * 2 + e % 2, key", "quarter * 2, key"),
    "backward: a delta of half a row": _float_backward(
        "other < pieces; other", "other < 8; other"),
}

TF32_FAULTS = {
    "a factor that is not rounded": Fault(
        "return tf32 ? gt_tf32(__uint_as_float(bits)) : bits;", "return bits;",
        "a factor that does not come from gt_tf32", file=TF32),
    "weights in another order": Fault("part % 2 * 2 + part / 2", "part", file=TF32),
    "the second value is the first one": Fault(
        "(2 * t + 1) * D + ((2 * t + 1) ^", "2 * t * D + ((2 * t) ^", file=TF32),
    "pieces of values exchanged otherwise": Fault("(2 * t ^ g / 4)", "(t ^ g / 4)", file=TF32),
    "the first eight values alone": Fault("[i * 8 * D]", "[0]", file=TF32),
    "features of another lane": Fault("+ t * 2 % width", "", file=TF32),
    "backward: the second rows of a warp are the first ones": Fault(
        "even_piece(tile, own, step * 2) + m * 16 * D", "even_piece(tile, own, step * 2)",
        file=TF32_BACKWARD),
    "backward: queries overwritten while they are read": Fault(
        "__syncwarp();  // the warp's queries", "{}", RACE, THREADS, TF32_BACKWARD),
}


class OneMachine:
    """An executor for the cases of one file; it runs one schedule."""

    def __init__(self, machine: HostMachine) -> None:
        self.machine = machine

    def raw(self, file: str, function: str, dtype: Any, grid: tuple[int, ...],
            block: tuple[int, ...], args: list[Any], shared_mem: int = 0) -> None:
        name = f"{function}<{kernels.c_type(dtype)}>"
        write_back(args, self.machine.launch(name, grid, block, args, 20, shared_mem))


def _run(fault: Fault, machine: HostMachine) -> None:
    for case in (CASES if fault.build is FIBERS else RACED)[fault.file]:
        case.check(OneMachine(machine), DTYPES[TYPES[fault.file]], np.random.default_rng(5))


ALL = {f"{which}: {name}": fault
       for which, faults in (("forward", FAULTS), ("backward", BACKWARD_FAULTS),
                             ("terms", TERMS_FAULTS), ("terms backward", TERMS_BACKWARD_FAULTS),
                             ("mask", MASK_FAULTS), ("cached", CACHED_FAULTS),
                             ("largest", LARGEST_FAULTS), ("float32", FLOAT_FAULTS),
                             ("TF32", TF32_FAULTS))
       for name, fault in faults.items()}
UNBROKEN = {f"{file}, {name}": Fault("", "", build=build, file=file)
            for file in KERNELS for name, build in (("fibers", FIBERS), ("threads", THREADS))}


def _plant(fault: Fault) -> Plant:
    text = TEXTS[fault.file]
    assert fault.old in text, fault.old
    return Plant(text, text.replace(fault.old, fault.new, 1), tuple(KERNELS[fault.file]),
                 fault.build)


@pytest.fixture(scope="module")
def machines(toolchain: Toolchain) -> Iterator[dict[Fault, HostMachine]]:
    """The machine of each fault, and of the text without one."""
    with kernel_plants.machines(toolchain, {
            fault: _plant(fault) for fault in (*ALL.values(), *UNBROKEN.values())}) as made:
        yield made


@pytest.mark.parametrize("name", ALL)
def test_fault_is_caught(name: str, machines: dict[Fault, HostMachine]) -> None:
    fault = ALL[name]
    if fault.caught_by == NAN:
        with pytest.raises(AssertionError, match="nan"):
            _run(fault, machines[fault])
    elif isinstance(fault.caught_by, str):
        with pytest.raises(KernelFault, match=fault.caught_by):
            _run(fault, machines[fault])
    else:
        with pytest.raises(fault.caught_by):
            _run(fault, machines[fault])


@pytest.mark.parametrize("build", UNBROKEN)
def test_the_unbroken_kernel_passes(
    build: str, machines: dict[Fault, HostMachine]
) -> None:
    _run(UNBROKEN[build], machines[UNBROKEN[build]])


def test_the_cases_launch_the_kernels_that_are_broken() -> None:
    recorder = Recorder()
    for file in KERNELS:
        for case in (*CASES[file], *RACED[file]):
            with pytest.raises(AssertionError):  # nothing is computed
                case.check(recorder, DTYPES[TYPES[file]], np.random.default_rng(5))
    assert {launch.kernel for launch in recorder.launched} == {
        (SOURCES.get(file, file), name.split("<")[0])
        for file, names in KERNELS.items() for name in names}
