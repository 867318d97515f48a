"""What every op gives and costs, recorded: a change that is meant to change nothing shows here.

`values.npz` has the values and gradients of every sample of every op, `counts.json` what they took
on the CPU (arrays, bytes, peaks, copies, holds), `launches.json` what they took of a CUDA device.
Values may differ by the tolerance of their dtype; counts may not differ at all.

Before and after a change that moves code, and after one that is meant to change an op:

    PYTHONPATH=tests python -m guard            # what is not as recorded; it takes a minute
    PYTHONPATH=tests python -m guard --record   # rewrite the files: the difference is reviewed

No test compares with the files: what `gtensor.testing.opcheck`, tests/ops/test_op_memory.py and the
budgets assert of every op is enough to judge a change. The tests here are those of the guard.
"""
