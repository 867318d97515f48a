"""Captured steps: `gt.capture`. A step is recorded, compared, written as a program and replayed.

| file | subject |
|---|---|
| `recorder.py` | what a step does, as calls on numbered values |
| `comparing.py` | whether two recordings are the same program |
| `numbers.py` | which floats among the arguments are live |
| `listing.py` | the calls and values that passes change |
| `passes.py` | dead calls, constants, versions of overwritten memory |
| `flow.py` | the order that memory asks for |
| `pieces.py` | elementwise calls as graphs of formulas |
| `fusing.py` | which of them become one call |
| `fused_numpy.py`, `fused_cuda.py` | that call on the CPU, and as a kernel |
| `grouping.py` | groups without a call in between |
| `rows.py` | calls on the rows of large arrays as one loop |
| `totals.py` | sums of all that is made tile by tile |
| `program.py` | a recording as text, which a replay runs |
| `captured.py` | `capture`: signatures, recordings, programs |
| `outside.py` | what a function reads from outside |
"""
