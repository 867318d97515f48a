"""What every op gives and costs, recorded: a change that is meant to change nothing shows here.

`values.npz` has the values and gradients of every sample of every op, `counts.json` what they took
on the CPU (arrays, bytes, peaks, copies, holds), `launches.json` what they took of a CUDA device.
Values may differ by the tolerance of their dtype; counts may not differ at all.

A change that is meant to change them rewrites the files, and the difference is seen in review:

    PYTHONPATH=tests python -m guard
"""
