"""The family's public names, for type checkers and editors; op_stubs.py writes them."""

from gtensor.engine.handle.tensor import Operand, Tensor
from gtensor.ops.arrange.flip_roll import flip as flip
from gtensor.ops.arrange.flip_roll import roll as roll
from gtensor.ops.arrange.gather_along import take_along_axis as take_along_axis
from gtensor.ops.arrange.index import take as take
from gtensor.ops.arrange.joining import concat as concat
from gtensor.ops.arrange.joining import repeat as repeat
from gtensor.ops.arrange.joining import stack as stack
from gtensor.ops.arrange.joining import tile as tile
from gtensor.ops.arrange.joining import unstack as unstack
from gtensor.ops.arrange.shape import astype as astype
from gtensor.ops.arrange.shape import broadcast_arrays as broadcast_arrays
from gtensor.ops.arrange.shape import broadcast_to as broadcast_to
from gtensor.ops.arrange.shape import expand_dims as expand_dims
from gtensor.ops.arrange.shape import flatten as flatten
from gtensor.ops.arrange.shape import matrix_transpose as matrix_transpose
from gtensor.ops.arrange.shape import moveaxis as moveaxis
from gtensor.ops.arrange.shape import permute_dims as permute_dims
from gtensor.ops.arrange.shape import reshape as reshape
from gtensor.ops.arrange.shape import squeeze as squeeze
from gtensor.ops.arrange.triangles import tril as tril
from gtensor.ops.arrange.triangles import triu as triu

def clone(x: Operand, /) -> Tensor:
    """A copy in memory of its own; gradients flow through it."""
