"""Functions and methods of other libraries that are compositions of gtensor's own.

Its modules are imported when a name of theirs is first used: `gtensor.system.foreign_names` says
which that is. None of them touches a raw array, so gradients and transforms follow from the ops.
"""
