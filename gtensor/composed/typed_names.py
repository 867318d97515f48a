"""What type checkers and editors see of the foreign names in `gtensor`; nothing imports it.

A test compares it with the table in `gtensor.system.foreign_names`.
"""

import numpy as _numpy

from gtensor import linalg as _linalg
from gtensor import nn as _nn
from gtensor import ops as _ops
from gtensor import random as _random
from gtensor import special as _special
from gtensor.composed import cuda as cuda
from gtensor.composed import curves as _curves
from gtensor.composed import drawing as _drawing
from gtensor.composed import extremes as _extremes
from gtensor.composed import formulas as _formulas
from gtensor.composed import matrices as _matrices
from gtensor.composed import shapes as _shapes
from gtensor.composed import tensor_methods as _tensor_methods
from gtensor.composed import utils as utils
from gtensor.composed import windows as _windows
from gtensor.creation import dtypes as _dtypes
from gtensor.creation import new_tensors as _new_tensors
from gtensor.engine.handle import context as _context
from gtensor.engine.handle import tensor as _tensor
from gtensor.nn import functional as _functional
from gtensor.nn import functional as functional
from gtensor.ops.arrange import shape as _shape

Parameter = _nn.Parameter
abs_ = _tensor.Tensor.abs_
cos_ = _tensor.Tensor.cos_
exp_ = _tensor.Tensor.exp_
log_ = _tensor.Tensor.log_
relu_ = _tensor.Tensor.relu_
sigmoid_ = _tensor.Tensor.sigmoid_
sin_ = _tensor.Tensor.sin_
sqrt_ = _tensor.Tensor.sqrt_
square_ = _tensor.Tensor.square_
tanh_ = _tensor.Tensor.tanh_
clamp_ = _tensor.Tensor.clip_
absolute = _ops.abs
around = rint = _ops.round
addcdiv = _formulas.addcdiv
addcmul = _formulas.addcmul
addmm = _matrices.addmm
amax = _extremes.amax
amin = _extremes.amin
arccos = _ops.acos
arccosh = _ops.acosh
arcsin = _ops.asin
arcsinh = _ops.asinh
arctan = _ops.atan
arctan2 = _ops.atan2
arctanh = _ops.atanh
array = _new_tensors.tensor
as_tensor = asanyarray = from_numpy = _new_tensors.asarray
ascontiguousarray = _tensor_methods.contiguous
asnumpy = _tensor.Tensor.numpy
atleast_1d = _shapes.atleast_1d
atleast_2d = _shapes.atleast_2d
bartlett_window = _windows.bartlett_window
bernoulli = _random.bernoulli
binomial = _random.binomial
bitwise_not = invert = _ops.bitwise_invert
blackman_window = _windows.blackman_window
bmm = mm = mv = _ops.matmul
bool_ = _dtypes.bool
cat = concatenate = _ops.concat
cdouble = _dtypes.complex128
cfloat = _dtypes.complex64
cholesky_solve = _linalg.cholesky_solve
chunk = _shapes.chunk
clamp = _ops.clip
clamp_max = _formulas.clamp_max
clamp_min = _formulas.clamp_min
column_stack = _shapes.column_stack
conjugate = _ops.conj
conv1d = _functional.conv1d
conv2d = _functional.conv2d
copy = _ops.clone
cosine_similarity = _functional.cosine_similarity
cross = _matrices.cross
cumprod = _ops.cumulative_prod
cumsum = _ops.cumulative_sum
det = _linalg.det
diagonal = _matrices.matrix_diagonal
digamma = _special.digamma
div = true_divide = _ops.divide
dot = _matrices.dot
double = _dtypes.float64
dropout = _functional.dropout
dtype = _numpy.dtype
eq = _ops.equal
erf = _functional.erf
erfc = _special.erfc
erfinv = _special.erfinv
exp2 = _formulas.exp2
fix = _ops.trunc
float = single = _dtypes.float32
gather = _shapes.gather
ge = _ops.greater_equal
gelu = _functional.gelu
ger = outer = _linalg.outer
get_rng_state = _random.get_state
gt = _ops.greater
half = _dtypes.float16
hamming_window = _windows.hamming_window
hann_window = _windows.hann_window
i0 = _special.i0
identity = _new_tensors.eye
index_select = _shapes.index_select
inference_mode = _context.no_grad
int = _dtypes.int32
int_ = intp = long = _dtypes.int64
inverse = _linalg.inv
is_tensor = _formulas.is_tensor
kaiser_window = _windows.kaiser_window
le = _ops.less_equal
left_shift = _ops.bitwise_left_shift
lgamma = _special.gammaln
log_softmax = _functional.log_softmax
logit = _special.logit
lt = _ops.less
masked_fill = _shapes.masked_fill
masked_select = _shapes.masked_select
matrix_exp = _linalg.expm
matrix_power = _linalg.matrix_power
mod = _ops.remainder
movedim = _ops.moveaxis
mul = _ops.multiply
multinomial = _random.multinomial
narrow = _shapes.narrow
ndarray = _tensor.Tensor
ne = _ops.not_equal
neg = _ops.negative
norm = _matrices.norm
normal = _random.normal
one_hot = _functional.one_hot
permute = _ops.permute_dims
pinverse = _linalg.pinv
poisson = _random.poisson
polygamma = _special.polygamma
power = _ops.pow
promote_types = _dtypes.result_type
rand = _random.rand
rand_like = _drawing.rand_like
randint = _random.integers
randint_like = _drawing.randint_like
randn = _random.randn
randn_like = _drawing.randn_like
randperm = _random.permutation
ravel = _ops.flatten
relu = _functional.relu
repeat_interleave = _ops.repeat
right_shift = _ops.bitwise_right_shift
row_stack = _shapes.vstack
rsqrt = _formulas.rsqrt
selu = _functional.selu
set_rng_state = _random.set_state
short = _dtypes.int16
sigmoid = _functional.sigmoid
sinc = _special.sinc
slogdet = _linalg.slogdet
softmax = _functional.softmax
sub = _ops.subtract
swapdims = _shapes.swapaxes
take_along_dim = _ops.take_along_axis
trace = _matrices.matrix_trace
transpose = _shapes.transpose
trapz = _curves.trapezoid
unbind = _ops.unstack
unflatten = _shape.unflatten
unsqueeze = _ops.expand_dims
xlogy = _special.xlogy
