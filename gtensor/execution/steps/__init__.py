"""Captured steps: `gt.capture`. A step is recorded, compared, written as a program and replayed.

| file | subject |
|---|---|
| `recorder.py` | what a step does, as calls on numbered values |
| `comparing.py` | whether two recordings are the same program |
| `program.py` | a recording as text, which a replay runs |
| `captured.py` | `capture`: signatures, recordings, programs |
| `outside.py` | what a function reads from outside |
"""
