"""The table of foreign names: what PyTorch, NumPy, CuPy and JAX call what gtensor has.

Data only, by room; `gtensor.system.late_imports` reads it when a room lacks a name that is asked
for. A name is an alias where it means the same here, and has a sentence with the right call where
an alias would hide a difference, or where there is nothing of the kind.

An alias names a thing of the same room, or `module:path`; `module:` is the module itself. The
methods of tensors are the room "gtensor.Tensor". A test resolves every alias.
"""

from __future__ import annotations

ALIASES: dict[str, dict[str, str]] = {
    "gtensor": {
        **{f"{name}_": f"gtensor:Tensor.{name}_" for name in (
            "abs", "cos", "exp", "log", "relu", "sigmoid", "sin", "sqrt", "square", "tanh")},
        "clamp_": "gtensor:Tensor.clip_",
        "absolute": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin",
        "arcsinh": "asinh", "arctan": "atan", "arctan2": "atan2", "arctanh": "atanh",
        "around": "round", "rint": "round",
        "array": "tensor", "as_tensor": "asarray", "asanyarray": "asarray",
        "bitwise_not": "bitwise_invert", "bmm": "matmul", "bool_": "bool", "cat": "concat",
        "cdouble": "complex128", "cfloat": "complex64", "clamp": "clip", "concatenate": "concat",
        "conjugate": "conj", "copy": "clone", "cumprod": "cumulative_prod",
        "cumsum": "cumulative_sum", "div": "divide", "double": "float64", "eq": "equal",
        "fix": "trunc", "float": "float32", "from_numpy": "asarray", "ge": "greater_equal",
        "gt": "greater", "half": "float16", "identity": "eye", "inference_mode": "no_grad",
        "int": "int32", "int_": "int64", "intp": "int64", "invert": "bitwise_invert",
        "le": "less_equal", "left_shift": "bitwise_left_shift", "long": "int64", "lt": "less",
        "mm": "matmul", "mod": "remainder", "movedim": "moveaxis", "mul": "multiply",
        "mv": "matmul", "ndarray": "Tensor", "ne": "not_equal", "neg": "negative",
        "permute": "permute_dims", "power": "pow", "promote_types": "result_type",
        "ravel": "flatten", "repeat_interleave": "repeat", "right_shift": "bitwise_right_shift",
        "short": "int16", "single": "float32", "sub": "subtract", "swapdims": "swapaxes",
        "take_along_dim": "take_along_axis", "trapz": "trapezoid", "true_divide": "divide",
        "unbind": "unstack", "unsqueeze": "expand_dims",
        "asnumpy": "gtensor:Tensor.numpy",
        "functional": "gtensor.nn.functional:", "utils": "gtensor.composed.utils:",
        "amax": "gtensor.composed.extremes:amax", "amin": "gtensor.composed.extremes:amin",
        "cross": "gtensor.composed.matrices:cross", "det": "gtensor.linalg:det",
        "cholesky_solve": "gtensor.linalg:cholesky_solve", "ger": "gtensor.linalg:outer",
        "matrix_exp": "gtensor.linalg:expm",
        "inverse": "gtensor.linalg:inv", "matrix_power": "gtensor.linalg:matrix_power",
        "outer": "gtensor.linalg:outer", "pinverse": "gtensor.linalg:pinv",
        "slogdet": "gtensor.linalg:slogdet",
        "conv1d": "gtensor.nn.functional:conv1d", "conv2d": "gtensor.nn.functional:conv2d",
        "cosine_similarity": "gtensor.nn.functional:cosine_similarity",
        "dropout": "gtensor.nn.functional:dropout", "erf": "gtensor.nn.functional:erf",
        "gelu": "gtensor.nn.functional:gelu", "log_softmax": "gtensor.nn.functional:log_softmax",
        "one_hot": "gtensor.nn.functional:one_hot", "relu": "gtensor.nn.functional:relu",
        "selu": "gtensor.nn.functional:selu", "sigmoid": "gtensor.nn.functional:sigmoid",
        "softmax": "gtensor.nn.functional:softmax",
        "digamma": "gtensor.special:digamma", "erfc": "gtensor.special:erfc",
        "erfinv": "gtensor.special:erfinv", "i0": "gtensor.special:i0",
        "lgamma": "gtensor.special:gammaln", "logit": "gtensor.special:logit",
        "polygamma": "gtensor.special:polygamma", "sinc": "gtensor.special:sinc",
        "xlogy": "gtensor.special:xlogy",
        "addmm": "gtensor.composed.matrices:addmm",
        "diagonal": "gtensor.composed.matrices:matrix_diagonal",
        "dot": "gtensor.composed.matrices:dot", "norm": "gtensor.composed.matrices:norm",
        "trace": "gtensor.composed.matrices:matrix_trace",
        "atleast_1d": "gtensor.composed.shapes:atleast_1d",
        "atleast_2d": "gtensor.composed.shapes:atleast_2d",
        "chunk": "gtensor.composed.shapes:chunk",
        "column_stack": "gtensor.composed.shapes:column_stack",
        "gather": "gtensor.composed.shapes:gather",
        "index_select": "gtensor.composed.shapes:index_select",
        "masked_fill": "gtensor.composed.shapes:masked_fill",
        "masked_select": "gtensor.composed.shapes:masked_select",
        "narrow": "gtensor.composed.shapes:narrow", "row_stack": "gtensor.composed.shapes:vstack",
        "transpose": "gtensor.composed.shapes:transpose",
        "unflatten": "gtensor.ops.arrange.shape:unflatten",
        "addcdiv": "gtensor.composed.formulas:addcdiv",
        "addcmul": "gtensor.composed.formulas:addcmul",
        "bartlett_window": "gtensor.composed.windows:bartlett_window",
        "blackman_window": "gtensor.composed.windows:blackman_window",
        "hamming_window": "gtensor.composed.windows:hamming_window",
        "hann_window": "gtensor.composed.windows:hann_window",
        "kaiser_window": "gtensor.composed.windows:kaiser_window",
        "clamp_max": "gtensor.composed.formulas:clamp_max",
        "clamp_min": "gtensor.composed.formulas:clamp_min",
        "exp2": "gtensor.composed.formulas:exp2",
        "is_tensor": "gtensor.composed.formulas:is_tensor",
        "rsqrt": "gtensor.composed.formulas:rsqrt",
        "ascontiguousarray": "gtensor.composed.tensor_methods:contiguous",
        "binomial": "gtensor.random:binomial", "poisson": "gtensor.random:poisson",
        "rand_like": "gtensor.composed.drawing:rand_like",
        "randint_like": "gtensor.composed.drawing:randint_like",
        "randn_like": "gtensor.composed.drawing:randn_like",
        "bernoulli": "gtensor.random:bernoulli", "get_rng_state": "gtensor.random:get_state",
        "multinomial": "gtensor.random:multinomial", "normal": "gtensor.random:normal",
        "rand": "gtensor.random:rand", "randint": "gtensor.random:integers",
        "randn": "gtensor.random:randn", "randperm": "gtensor.random:permutation",
        "set_rng_state": "gtensor.random:set_state",
        "dtype": "numpy:dtype",
        "Parameter": "gtensor.nn:Parameter",
        "cuda": "gtensor.composed.cuda:",
    },
    "gtensor.Tensor": {
        "absolute": "gtensor:abs",
        "acos": "gtensor:acos", "arccos": "gtensor:acos",
        "acosh": "gtensor:acosh",
        "add": "gtensor:add",
        "allclose": "gtensor:allclose",
        "arcsin": "gtensor:asin", "asin": "gtensor:asin",
        "arctan": "gtensor:atan", "atan": "gtensor:atan",
        "arctan2": "gtensor:atan2", "atan2": "gtensor:atan2",
        "argsort": "gtensor:argsort",
        "asinh": "gtensor:asinh",
        "atanh": "gtensor:atanh",
        "bincount": "gtensor:bincount",
        "bitwise_and": "gtensor:bitwise_and",
        "bitwise_not": "gtensor:bitwise_invert",
        "bitwise_or": "gtensor:bitwise_or",
        "bitwise_xor": "gtensor:bitwise_xor",
        "bmm": "gtensor:matmul", "matmul": "gtensor:matmul", "mm": "gtensor:matmul",
        "mv": "gtensor:matmul",
        "ceil": "gtensor:ceil",
        "arccos_": "gtensor:Tensor.acos_", "arcsin_": "gtensor:Tensor.asin_",
        "arctan_": "gtensor:Tensor.atan_", "clamp": "gtensor:Tensor.clip",
        "clamp_": "gtensor:Tensor.clip_", "conjugate": "gtensor:Tensor.conj",
        "copy": "gtensor:Tensor.clone", "get": "gtensor:Tensor.numpy",
        "movedim": "gtensor:Tensor.moveaxis", "neg_": "gtensor:Tensor.negative_",
        "ravel": "gtensor:Tensor.flatten", "repeat_interleave": "gtensor:Tensor.repeat",
        "unsqueeze": "gtensor:Tensor.expand_dims",
        "copysign": "gtensor:copysign",
        "corrcoef": "gtensor:corrcoef",
        "cos": "gtensor:cos",
        "cosh": "gtensor:cosh",
        "count_nonzero": "gtensor:count_nonzero",
        "cov": "gtensor:cov",
        "cummax": "gtensor:cummax", "cummin": "gtensor:cummin",
        "cumprod": "gtensor:cumulative_prod", "cumulative_prod": "gtensor:cumulative_prod",
        "cumsum": "gtensor:cumulative_sum", "cumulative_sum": "gtensor:cumulative_sum",
        "diag": "gtensor:diag", "diag_embed": "gtensor:diag_embed",
        "diff": "gtensor:diff",
        "div": "gtensor:divide", "divide": "gtensor:divide", "true_divide": "gtensor:divide",
        "eq": "gtensor:equal",
        "expm1": "gtensor:expm1",
        "fix": "gtensor:trunc", "trunc": "gtensor:trunc",
        "floor": "gtensor:floor",
        "floor_divide": "gtensor:floor_divide",
        "fmod": "gtensor:fmod",
        "ge": "gtensor:greater_equal", "greater_equal": "gtensor:greater_equal",
        "greater": "gtensor:greater", "gt": "gtensor:greater",
        "hypot": "gtensor:hypot",
        "index_add": "gtensor:index_add",
        "isclose": "gtensor:isclose",
        "isfinite": "gtensor:isfinite",
        "isinf": "gtensor:isinf",
        "isnan": "gtensor:isnan",
        "kron": "gtensor:kron",
        "le": "gtensor:less_equal", "less_equal": "gtensor:less_equal",
        "lerp": "gtensor:lerp",
        "less": "gtensor:less", "lt": "gtensor:less",
        "log10": "gtensor:log10",
        "log1p": "gtensor:log1p",
        "log2": "gtensor:log2",
        "logical_and": "gtensor:logical_and",
        "logical_not": "gtensor:logical_not",
        "logical_or": "gtensor:logical_or",
        "logical_xor": "gtensor:logical_xor",
        "logcumsumexp": "gtensor:logcumsumexp",
        "logsumexp": "gtensor:logsumexp",
        "masked_scatter": "gtensor:masked_scatter",
        "maximum": "gtensor:maximum",
        "median": "gtensor:median",
        "minimum": "gtensor:minimum",
        "mul": "gtensor:multiply", "multiply": "gtensor:multiply",
        "nan_to_num": "gtensor:nan_to_num",
        "nanmean": "gtensor:nanmean", "nanmedian": "gtensor:nanmedian",
        "nanquantile": "gtensor:nanquantile", "nansum": "gtensor:nansum",
        "ne": "gtensor:not_equal", "not_equal": "gtensor:not_equal",
        "neg": "gtensor:negative", "negative": "gtensor:negative",
        "positive": "gtensor:positive",
        "pow": "gtensor:pow",
        "quantile": "gtensor:quantile",
        "reciprocal": "gtensor:reciprocal",
        "remainder": "gtensor:remainder",
        "renorm": "gtensor:renorm",
        "roll": "gtensor:roll",
        "scatter": "gtensor:scatter", "scatter_add": "gtensor:scatter_add",
        "scatter_reduce": "gtensor:scatter_reduce",
        "sign": "gtensor:sign",
        "sin": "gtensor:sin",
        "sinh": "gtensor:sinh",
        "square": "gtensor:square",
        "sub": "gtensor:subtract", "subtract": "gtensor:subtract",
        "swapaxes": "gtensor:swapaxes", "swapdims": "gtensor:swapaxes",
        "take": "gtensor:take",
        "take_along_dim": "gtensor:take_along_axis",
        "tan": "gtensor:tan",
        "tensordot": "gtensor:tensordot",
        "topk": "gtensor:topk",
        "tril": "gtensor:tril",
        "triu": "gtensor:triu",
        "unbind": "gtensor:unstack",
        "unique": "gtensor:unique",
        "vecdot": "gtensor:vecdot",
        "erf": "gtensor.nn.functional:erf", "gelu": "gtensor.nn.functional:gelu",
        "log_softmax": "gtensor.nn.functional:log_softmax",
        "softmax": "gtensor.nn.functional:softmax",
        "digamma": "gtensor.special:digamma", "erfc": "gtensor.special:erfc",
        "erfinv": "gtensor.special:erfinv", "i0": "gtensor.special:i0",
        "lgamma": "gtensor.special:gammaln", "logit": "gtensor.special:logit",
        "sinc": "gtensor.special:sinc", "xlogy": "gtensor.special:xlogy",
        "det": "gtensor.linalg:det", "inverse": "gtensor.linalg:inv",
        "outer": "gtensor.linalg:outer",
        "addmm": "gtensor.composed.matrices:addmm",
        "diagonal": "gtensor.composed.matrices:matrix_diagonal",
        "dot": "gtensor.composed.matrices:dot", "norm": "gtensor.composed.matrices:norm",
        "trace": "gtensor.composed.matrices:matrix_trace",
        "chunk": "gtensor.composed.shapes:chunk", "gather": "gtensor.composed.shapes:gather",
        "index_select": "gtensor.composed.shapes:index_select",
        "masked_fill": "gtensor.composed.shapes:masked_fill",
        "masked_select": "gtensor.composed.shapes:masked_select",
        "narrow": "gtensor.composed.shapes:narrow", "select": "gtensor.composed.shapes:select",
        "split": "gtensor.composed.shapes:split_by_size",
        "transpose": "gtensor.composed.shapes:transpose",
        "unflatten": "gtensor.ops.arrange.shape:unflatten",
        "addcdiv": "gtensor.composed.formulas:addcdiv",
        "addcmul": "gtensor.composed.formulas:addcmul",
        "clamp_max": "gtensor.composed.formulas:clamp_max",
        "clamp_min": "gtensor.composed.formulas:clamp_min",
        "exp2": "gtensor.composed.formulas:exp2", "rsqrt": "gtensor.composed.formulas:rsqrt",
        "amax": "gtensor.composed.extremes:amax", "amin": "gtensor.composed.extremes:amin",
        "at": "gtensor.composed.scattering:at",
        "bfloat16": "gtensor.composed.tensor_methods:bfloat16",
        "bool": "gtensor.composed.tensor_methods:bool_",
        "cdouble": "gtensor.composed.tensor_methods:cdouble",
        "cfloat": "gtensor.composed.tensor_methods:cfloat",
        "contiguous": "gtensor.composed.tensor_methods:contiguous",
        "cpu": "gtensor.composed.tensor_methods:cpu",
        "cuda": "gtensor.composed.tensor_methods:cuda",
        "dim": "gtensor.composed.tensor_methods:dim",
        "double": "gtensor.composed.tensor_methods:double",
        "element_size": "gtensor.composed.tensor_methods:element_size",
        "expand": "gtensor.composed.tensor_methods:expand",
        "expand_as": "gtensor.composed.tensor_methods:expand_as",
        "float": "gtensor.composed.tensor_methods:float",
        "get_device": "gtensor.composed.tensor_methods:get_device_index",
        "half": "gtensor.composed.tensor_methods:half",
        "int": "gtensor.composed.tensor_methods:int_",
        "is_complex": "gtensor.composed.tensor_methods:is_complex",
        "is_contiguous": "gtensor.composed.tensor_methods:is_contiguous",
        "is_cuda": "gtensor.composed.tensor_methods:is_cuda",
        "is_floating_point": "gtensor.composed.tensor_methods:is_floating_point",
        "itemsize": "gtensor.composed.tensor_methods:itemsize",
        "long": "gtensor.composed.tensor_methods:long",
        "ndimension": "gtensor.composed.tensor_methods:dim",
        "nelement": "gtensor.composed.tensor_methods:numel",
        "new_empty": "gtensor.composed.tensor_methods:new_empty",
        "new_full": "gtensor.composed.tensor_methods:new_full",
        "new_ones": "gtensor.composed.tensor_methods:new_ones",
        "new_tensor": "gtensor.composed.tensor_methods:new_tensor",
        "new_zeros": "gtensor.composed.tensor_methods:new_zeros",
        "numel": "gtensor.composed.tensor_methods:numel",
        "permute": "gtensor.composed.tensor_methods:permute",
        "pin_memory": "gtensor.composed.tensor_methods:pin_memory",
        "reshape_as": "gtensor.composed.tensor_methods:view_as",
        "short": "gtensor.composed.tensor_methods:short", "t": "gtensor.composed.tensor_methods:t",
        "tile": "gtensor.composed.tensor_methods:tiled",
        "type": "gtensor.composed.tensor_methods:cast",
        "type_as": "gtensor.composed.tensor_methods:type_as",
        "view": "gtensor.composed.tensor_methods:view",
        "view_as": "gtensor.composed.tensor_methods:view_as",
        "add_": "gtensor.composed.in_place:add_", "addcdiv_": "gtensor.composed.in_place:addcdiv_",
        "addcmul_": "gtensor.composed.in_place:addcmul_",
        "bernoulli_": "gtensor.composed.in_place:bernoulli_",
        "bitwise_and_": "gtensor.composed.in_place:bitwise_and_",
        "bitwise_or_": "gtensor.composed.in_place:bitwise_or_",
        "bitwise_xor_": "gtensor.composed.in_place:bitwise_xor_",
        "copy_": "gtensor.composed.in_place:copy_", "div_": "gtensor.composed.in_place:div_",
        "divide_": "gtensor.composed.in_place:div_", "fill": "gtensor.composed.in_place:fill_",
        "fill_": "gtensor.composed.in_place:fill_",
        "floor_divide_": "gtensor.composed.in_place:floor_divide_",
        "index_add_": "gtensor.composed.in_place:index_add_",
        "lerp_": "gtensor.composed.in_place:lerp_",
        "masked_fill_": "gtensor.composed.in_place:masked_fill_",
        "masked_scatter_": "gtensor.composed.in_place:masked_scatter_",
        "mul_": "gtensor.composed.in_place:mul_", "multiply_": "gtensor.composed.in_place:mul_",
        "normal_": "gtensor.composed.in_place:normal_", "pow_": "gtensor.composed.in_place:pow_",
        "remainder_": "gtensor.composed.in_place:remainder_",
        "scatter_": "gtensor.composed.in_place:scatter_",
        "scatter_add_": "gtensor.composed.in_place:scatter_add_",
        "sub_": "gtensor.composed.in_place:sub_", "subtract_": "gtensor.composed.in_place:sub_",
        "uniform_": "gtensor.composed.in_place:uniform_",
        "zero_": "gtensor.composed.in_place:zero_",
    },
    "gtensor.random": {
        "randint": "integers", "randperm": "permutation", "seed": "manual_seed",
        "random": "uniform", "random_sample": "uniform", "ranf": "uniform", "sample": "uniform",
        "standard_normal": "normal", "standard_exponential": "exponential",
        "standard_gamma": "gamma", "loggamma": "log_gamma",
        "get_rng_state": "get_state", "set_rng_state": "set_state",
    },
    "gtensor.linalg": {
        "LinAlgError": "numpy.linalg:LinAlgError", "inverse": "inv",
        "matrix_exp": "expm",
    },
    "gtensor.fft": {
    },
    "gtensor.special": {
        "expm1": "gtensor:expm1", "lgamma": "gammaln", "log1p": "gtensor:log1p",
        "logsumexp": "gtensor:logsumexp", "psi": "digamma",
    },
    "gtensor.nn": {
        "NLLLoss2d": "NLLLoss", "modules": "gtensor.nn:",
    },
    "gtensor.nn.functional": {
        "upsample": "interpolate", "swish": "silu", "hard_sigmoid": "hardsigmoid",
        "hard_swish": "hardswish", "hard_silu": "hardswish", "hard_tanh": "hardtanh",
        "log_sigmoid": "logsigmoid", "soft_sign": "softsign", "logsumexp": "gtensor:logsumexp",
    },
    "gtensor.nn.init": {
        "constant": "constant_", "eye": "eye_", "kaiming_normal": "kaiming_normal_",
        "kaiming_uniform": "kaiming_uniform_", "normal": "normal_", "orthogonal": "orthogonal_",
        "uniform": "uniform_", "xavier_normal": "xavier_normal_",
        "xavier_uniform": "xavier_uniform_",
    },
    "gtensor.nn.utils": {
        "rnn": "gtensor.nn.utils:", "clip_grad": "gtensor.nn.utils:",
        "convert_parameters": "gtensor.nn.utils:", "clip_grad_norm": "clip_grad_norm_",
    },
    "gtensor.optim": {
    },
    "gtensor.optim.lr_scheduler": {
    },
    "gtensor.data": {
    },
    "gtensor.func": {
        "checkpoint": "gtensor.nn.utils:checkpoint", "remat": "gtensor.nn.utils:checkpoint",
    },
}

SENTENCES: dict[str, dict[str, str]] = {
    "gtensor": {
        "split": (
            "x.split(2) makes parts of 2 as PyTorch's, gt.chunk(x, 2) makes 2 parts as NumPy's "
            "split"),
        **dict.fromkeys(("array_split", "tensor_split"), (
            "[x[i * len(x) // n:(i + 1) * len(x) // n] for i in range(n)] are n parts, of sizes "
            "that differ by 1 at most; gt.chunk(x, n) makes fewer where the last would be empty")),
        "select": (
            "x[:, i] and gt.take(x, i, axis=) are PyTorch's select; gt.where(condition, a, b), "
            "nested, is NumPy's"),
        "inner": (
            "gt.vecdot(x1, x2) sums over the last axis; gt.tensordot(x1, x2, axes=([-1], [-1])) "
            "pairs all others, as NumPy's"),
        "append": (
            "gt.concat([x, gt.asarray(values)]); collect tensors in a list and join them once"),
        "insert": "gt.concat([x[:i], values, x[i:]])",
        "delete": "gt.concat([x[:i], x[i + 1:]])",
        "block_diag": "gt.zeros((m, n)), then x[a:b, c:d] = block for each",
        "fliplr": "gt.flip(x, 1)",
        "flipud": "gt.flip(x, 0)",
        "rot90": "gt.flip(gt.matrix_transpose(x), -2)",
        "dstack": "gt.concat([x[..., None] for x in arrays], 2) for matrices",
        "shape": "x.shape",
        "ndim": "x.ndim",
        "size": "x.size",
        "Size": "a shape is a plain tuple: x.shape",
        "is_floating_point": "x.is_floating_point()",
        "is_complex": "x.is_complex()",
        "FloatTensor": "gt.tensor(data, dtype=gt.float32), or gt.empty(shape)",
        "DoubleTensor": "gt.tensor(data, dtype=gt.float64)",
        "LongTensor": "gt.tensor(data, dtype=gt.int64)",
        "IntTensor": "gt.tensor(data, dtype=gt.int32)",
        "BoolTensor": "gt.tensor(data, dtype=gt.bool)",
        "byte": "gt.uint8 is PyTorch's byte, gt.int8 NumPy's",
        "set_default_tensor_type": (
            'gt.set_default_device("cuda") says where new tensors are; give dtype= for another '
            'dtype than float32'),
        "nanmax": "gt.max(gt.where(gt.isnan(x), -gt.inf, x))",
        "nanmin": "gt.min(gt.where(gt.isnan(x), gt.inf, x))",
        "average": "gt.mean(x), or gt.sum(x * weights) / gt.sum(weights)",
        "ptp": "gt.max(x) - gt.min(x)",
        "bucketize": "gt.searchsorted(edges, x)",
        "histc": "gt.histogram(x, edges).hist counts between edges, or in so many equal bins",
        "index_put": "x.at[index].set(values), or .add(values)",
        "softplus": "F.softplus(x)",
        "heaviside": "gt.where(x > 0, 1.0, gt.where(x < 0, 0.0, value))",
        "deg2rad": "x * (gt.pi / 180)",
        "radians": "x * (gt.pi / 180)",
        "rad2deg": "x * (180 / gt.pi)",
        "degrees": "x * (180 / gt.pi)",
        "angle": "gt.atan2(gt.imag(x), gt.real(x))",
        "complex": "real + 1j * imag, or gt.complex64 for the dtype",
        "polar": "r * gt.exp(1j * angle)",
        "dist": "gt.linalg.vector_norm(x1 - x2)",
        "baddbmm": "input + gt.matmul(x1, x2)",
        "logdet": "gt.linalg.slogdet(x).logabsdet",
        "cholesky": "gt.linalg.cholesky(x)",
        "qr": "gt.linalg.qr(x)",
        "svd": "gt.linalg.svd(x) gives (U, S, Vh); PyTorch's torch.svd gives V, not Vh",
        "pinv": "gt.linalg.pinv(x)",
        "inv": "gt.linalg.inv(x)",
        "solve": "gt.linalg.solve(a, b)",
        "eigh": "gt.linalg.eigh(x)",
        "polyval": "a loop of y = y * x + c over the coefficients, the highest first",
        "polyfit": (
            "gt.linalg.pinv(x[:, None] ** gt.arange(n + 1)) @ y gives the coefficients, the "
            "lowest first"),
        "view_as_real": "gt.stack([gt.real(x), gt.imag(x)], axis=-1)",
        "view_as_complex": "x[..., 0] + 1j * x[..., 1]",
        "as_strided": (
            "x[gt.arange(n)[:, None] + gt.arange(k)] copies windows; slices such as x[::2] are "
            "views"),
        "channels_last": "memory formats are not chosen: tensors are (N, C, H, W) in order",
        "contiguous_format": "memory formats are not chosen: x.contiguous() lies in order",
        "save": (
            'gt.checkpoint.save_file({"x": x}, path) writes tensors, gt.checkpoint.save(path, '
            'model=, optimizer=) a run'),
        "load": (
            "gt.checkpoint.load_file(path) reads tensors, gt.checkpoint.load_into(model, path) "
            "weights of PyTorch's, too"),
        "savez": 'gt.checkpoint.save_file({"x": x}, path), or np.savez(path, x=x.numpy())',
        "set_float32_matmul_precision": (
            "GTENSOR_TF32=1, or with gt.settings.override(tf32=1):, allows TF32"),
        "use_deterministic_algorithms": (
            "gt.settings.repeatable = 1, or GTENSOR_REPEATABLE=1, sums at indices in one order"),
        "compile": "gt.capture(step) records a training step and replays it",
        "jit": "gt.capture(step) records a training step and replays it",
        "seed": "gt.manual_seed(0)",
        "initial_seed": (
            "gt.manual_seed(0) sets the seed, gt.random.get_state() reads the generator's state"),
        "custom_gradient": "@gt.custom_vjp, or a subclass of gt.autograd.Function",
        "closure_convert": "gt.custom_vjp takes all tensors that have gradients as arguments",
        "scan": (
            "a loop of Python over x, whose outputs gt.stack joins; F.linear_scan and "
            "gt.cumulative_sum run linear recurrences in one op"),
        "lax": "gt itself has the functions; control flow is Python's if, for and while",
        "numpy": "gt itself has NumPy's functions; x.numpy() is the NumPy array of a tensor",
        "stop_gradient": "x.detach()",
        "pmap": "gt.distributed runs a process for each GPU",
        "tree_map": (
            "gt.func's transforms take trees (dicts, lists, tuples) of tensors; {k: f(v) for k, v "
            "in tree.items()} maps one"),
        "tree_util": "gt.func's transforms take trees (dicts, lists, tuples) of tensors",
        "vectorize": "gt.vmap(f)",
        "apply_along_axis": "gt.vmap(f)(x) over the first axis, gt.vmap(f, 1)(x) over the second",
        "set_printoptions": "tensors print as NumPy's arrays do: np.set_printoptions(precision=3)",
        "backends": "there are no switches of libraries; gt.settings has gtensor's own",
        "version": "gt.__version__",
        "hub": "gt.checkpoint.load_into(model, path) reads weights that were downloaded",
        "multiprocessing": (
            "gt.data.DataLoader(num_workers=) reads in threads; gt.distributed trains in them"),
    },
    "gtensor.Tensor": {
        "__array_interface__": "x.numpy().__array_interface__; Image.fromarray(x.numpy())",
        "sort": (
            "gt.sort(x, axis=-1) gives the values and gt.argsort(x, axis=-1) the places; "
            "PyTorch's gives both, NumPy's sorts in place"),
        "nonzero": (
            "gt.nonzero(x) gives a tensor for each axis as NumPy's, gt.argwhere(x) a row for each "
            "element as PyTorch's"),
        "equal": "(x == y).all() is one answer, x.eq(y) one for each element",
        "where": "gt.where(condition, x, y)",
        "mode": "gt.unique_counts(x) gives the values and how often each occurs",
        "kthvalue": "gt.sort(x, axis=-1)[..., k - 1]",
        "histc": "gt.histogram(x, edges).hist counts between edges, or in so many equal bins",
        "index_copy_": "x[index] = source",
        "index_fill_": "x[index] = value",
        "index_put_": "x[index] = values",
        "put_": "x[index] = values",
        "detach_": "x = x.detach()",
        "squeeze_": "x = x.squeeze(axis)",
        "unsqueeze_": "x = x.expand_dims(axis)",
        "t_": "x = x.T",
        "transpose_": "x = x.transpose(i, j)",
        "resize_": "x = x.reshape(shape), or gt.empty(shape)",
        "set_": "x = other, or x[...] = other for its values",
        "swapaxes_": "x = x.swapaxes(i, j)",
        "exponential_": "x[...] = gt.random.exponential(x.shape)",
        "random_": "x[...] = gt.random.integers(low, high, x.shape)",
        "cumsum_": "x[...] = gt.cumulative_sum(x, axis=)",
        "apply_": "x[...] = f(x), with functions of gt",
        "map_": "x[...] = f(x, y), with functions of gt",
        "logdet": "gt.linalg.slogdet(x).logabsdet",
        "cholesky": "gt.linalg.cholesky(x)",
        "svd": "gt.linalg.svd(x)",
        "qr": "gt.linalg.qr(x)",
        "pinverse": "gt.linalg.pinv(x)",
        "angle": "gt.atan2(x.imag, x.real)",
        "H": "x.mT.conj()",
        "mH": "x.mT.conj()",
        "adjoint": "x.mT.conj()",
        "grad_fn": (
            "x.requires_grad says whether there is a history, x.is_leaf whether an op made it; "
            "repr(x) names the op"),
        "unfold": (
            "x[gt.arange(n)[:, None] + gt.arange(size)] copies windows; F.unfold takes those of "
            "images"),
        "stride": (
            "x.numpy().strides, in bytes; x.is_contiguous() says whether elements lie in order"),
        "strides": (
            "x.numpy().strides, in bytes; x.is_contiguous() says whether elements lie in order"),
        "flags": "x.is_contiguous(), and x.numpy().flags on the CPU",
        "base": "whose memory a view shares is not told; x.clone() has its own",
        "flat": "x.flatten()",
        "tobytes": "x.numpy().tobytes()",
        "tofile": "x.numpy().tofile(path)",
        "itemset": "x[i] = value",
        "data_ptr": (
            'x.numpy().ctypes.data on the CPU, x.__cuda_array_interface__["data"][0] on a GPU'),
        "storage": "x.detach() shares the memory, x.nbytes is its size",
        "untyped_storage": "x.detach() shares the memory, x.nbytes is its size",
        "share_memory_": "gt.data.memmap(path) is memory that processes share",
        "record_stream": "gt.memory.record_stream(x.array, stream)",
        "block_until_ready": "x.device.synchronize()",
        "is_sparse": "tensors are dense",
        "layout": "tensors are dense",
        "register_backward_hook": "x.register_hook(hook), called with the gradient",
    },
    "gtensor.random": {
        **dict.fromkeys((
            "default_rng", "RandomState", "SeedSequence", "BitGenerator", "MT19937", "PCG64",
            "PCG64DXSM", "Philox", "SFC64"), (
                "gt.random.manual_seed(0) seeds the generator; with gt.random.seeded(0): draws "
                "from another")),
        "PRNGKey": "gt.random.key(seed), which draws take as generator=",
        "fork_rng": "with gt.random.seeded(seed): draws from a generator apart",
        "initial_seed": "gt.random.get_state() is the generator's state",
        "random_integers": "gt.random.integers(low, high + 1, shape)",
        "bytes": "gt.random.generator().bytes(n)",
        "rademacher": "2 * gt.random.bernoulli(0.5, shape) - 1",
        "lognormal": "gt.exp(gt.random.normal(mean, std, shape))",
        "multivariate_normal": (
            "mean + gt.random.normal((count, n)) @ gt.linalg.cholesky(covariance).mT"),
        "thread_safe_generator": "gt.random.generator()",
        **{name: f"gt.asarray(gt.random.generator().{name}(...)) draws with NumPy" for name in (
            "chisquare", "f", "geometric",
            "hypergeometric", "logistic", "logseries", "negative_binomial",
            "noncentral_chisquare", "noncentral_f", "pareto", "power", "rayleigh",
            "standard_cauchy", "standard_t", "triangular", "vonmises", "wald",
            "weibull", "zipf")},
    },
    "gtensor.special": {
        "erf": "gt.erf(x)",
        "softmax": "F.softmax(x, dim)",
        "log_softmax": "F.log_softmax(x, dim)",
        "log_expit": "F.logsigmoid(x)",
        "softplus": "F.softplus(x)",
        **dict.fromkeys(("gammainc", "gammaincc", "betainc"), (
            "scipy.special has it for x.numpy(), on the CPU, without a gradient")),
        "beta": "exp(gammaln(a) + gammaln(b) - gammaln(a + b))",
        "betaln": "gammaln(a) + gammaln(b) - gammaln(a + b)",
        "gamma": "sign * exp(gammaln(x)); exp(gammaln(x)) for x > 0",
        "erfcinv": "erfinv(1 - x), or -ndtri(x / 2) / sqrt(2) with all digits",
    },
    "gtensor.linalg": {
        "eig": (
            "gt.linalg.eigh(x) if x is symmetric or Hermitian; else np.linalg.eig(x.numpy()), on "
            "the CPU and without a gradient"),
        "eigvals": (
            "gt.linalg.eigvalsh(x) if x is symmetric or Hermitian; else "
            "np.linalg.eigvals(x.numpy()), on the CPU and without a gradient"),
        "logm": (
            "gt.asarray(scipy.linalg.logm(x.numpy())) computes it on the CPU, without a gradient"),
        "sqrtm": (
            "w, v = gt.linalg.eigh(x) and (v * gt.sqrt(w)) @ v.mT of a symmetric x; else "
            "scipy.linalg.sqrtm(x.numpy())"),
        "kron": "gt.kron(a, b)",
        "multi_dot": "a @ b @ c",
        "dot": "a @ b",
        "matvec": "(a @ x[..., None])[..., 0]",
        "vecmat": "(x.conj()[..., None, :] @ a)[..., 0, :]",
        "cholesky_ex": "gt.linalg.cholesky(x), which raises LinAlgError on the CPU",
        "inv_ex": "gt.linalg.inv(x), which raises LinAlgError on the CPU",
        "solve_ex": "gt.linalg.solve(a, b), which raises LinAlgError on the CPU",
        **dict.fromkeys((
            "lu", "lu_factor", "lu_factor_ex", "lu_solve", "ldl_factor", "ldl_factor_ex",
            "ldl_solve"), (
                "gt.linalg.solve(a, b) for systems, gt.linalg.det(a) for determinants; "
                "scipy.linalg.lu(a.numpy()) has the factors")),
        "cho_factor": "gt.linalg.cholesky(a), then gt.linalg.cholesky_solve(b, l)",
        "cho_solve": "gt.linalg.cholesky_solve(b, l) of a lower factor l",
        "householder_product": "gt.linalg.qr(x) gives the orthogonal factor itself",
        "tensorinv": "gt.linalg.inv of x reshaped to a square matrix",
        "tensorsolve": "gt.linalg.solve of a reshaped to a square matrix",
        "vander": "x[:, None] ** gt.arange(n)",
        "null_space": "gt.linalg.svd(x).Vh[rank:].mT",
        "orth": "gt.linalg.svd(x).U[:, :rank]",
        "block_diag": (
            "gt.asarray(scipy.linalg.block_diag(...)) computes it on the CPU, without a gradient"),
        "toeplitz": "c[abs(gt.arange(n)[:, None] - gt.arange(n))] of a symmetric one",
        "logdet": "gt.linalg.slogdet(x).logabsdet",
        "schur": "scipy.linalg.schur(x.numpy()) computes it on the CPU, without a gradient",
    },
    "gtensor.fft": {
        "dct": "scipy.fft.dct(x.numpy()) computes it on the CPU, without a gradient",
        "idct": "scipy.fft.idct(x.numpy()) computes it on the CPU, without a gradient",
        "dst": "scipy.fft.dst(x.numpy()) computes it on the CPU, without a gradient",
        "idst": "scipy.fft.idst(x.numpy()) computes it on the CPU, without a gradient",
        "dctn": "scipy.fft.dctn(x.numpy()) computes it on the CPU, without a gradient",
        "idctn": "scipy.fft.idctn(x.numpy()) computes it on the CPU, without a gradient",
        "dstn": "scipy.fft.dstn(x.numpy()) computes it on the CPU, without a gradient",
        "idstn": "scipy.fft.idstn(x.numpy()) computes it on the CPU, without a gradient",
        "next_fast_len": "any length is transformed; scipy.fft.next_fast_len(n) finds a fast one",
    },
    "gtensor.nn": {
        "Conv3d": (
            "there are no convolutions of volumes yet; nn.Conv2d on x.swapaxes(1, 2).reshape((N *"
            " D, C, H, W)) takes each slice"),
        "ConvTranspose3d": (
            "there are no convolutions of volumes yet; nn.ConvTranspose2d on x.swapaxes(1, "
            "2).reshape((N * D, C, H, W)) takes each slice"),
        "MaxPool3d": (
            "there are no pools of volumes yet; nn.MaxPool2d on x.swapaxes(1, 2).reshape((N * D, "
            "C, H, W)) takes each slice"),
        "AvgPool3d": (
            "there are no pools of volumes yet; nn.AvgPool2d on x.swapaxes(1, 2).reshape((N * D, "
            "C, H, W)) takes each slice"),
        "AdaptiveAvgPool3d": (
            "x.mean(axis=(2, 3, 4), keepdims=True) for one value; there are no pools of volumes "
            "yet"),
        "AdaptiveMaxPool3d": (
            "gt.max(x, axis=(2, 3, 4), keepdims=True) for one value; there are no pools of "
            "volumes yet"),
        "AdaptiveMaxPool1d": "nn.AdaptiveMaxPool2d((1, size)) on x[:, :, None], then [:, :, 0]",
        "LazyLinear": "nn.Linear(...) with the number of inputs written out",
        "LazyConv1d": "nn.Conv1d(...) with the number of inputs written out",
        "LazyConv2d": "nn.Conv2d(...) with the number of inputs written out",
        "LazyConvTranspose1d": "nn.ConvTranspose1d(...) with the number of inputs written out",
        "LazyConvTranspose2d": "nn.ConvTranspose2d(...) with the number of inputs written out",
        "LazyBatchNorm1d": "nn.BatchNorm1d(...) with the number of inputs written out",
        "LazyBatchNorm2d": "nn.BatchNorm2d(...) with the number of inputs written out",
        "LazyBatchNorm3d": "nn.BatchNorm3d(...) with the number of inputs written out",
        "LazyInstanceNorm1d": "nn.InstanceNorm1d(...) with the number of inputs written out",
        "LazyInstanceNorm2d": "nn.InstanceNorm2d(...) with the number of inputs written out",
        "LazyInstanceNorm3d": "nn.InstanceNorm3d(...) with the number of inputs written out",
        "UninitializedParameter": "nn.Parameter(gt.empty(shape)), with the shape written out",
        "Buffer": "self.register_buffer(name, tensor)",
        "CTCLoss": (
            "there is no CTC loss yet; gt.logsumexp over alignments, step by step, writes one"),
        "Transformer": (
            "nn.TransformerEncoder is there; a decoder is nn.MultiheadAttention twice, "
            "nn.LayerNorm and nn.Linear in a Module of your own"),
        "TransformerDecoder": (
            "nn.ModuleList of decoder layers of your own: nn.MultiheadAttention twice, "
            "nn.LayerNorm and nn.Linear"),
        "TransformerDecoderLayer": (
            "nn.MultiheadAttention twice, nn.LayerNorm and nn.Linear in a Module of your own"),
        "EmbeddingBag": "nn.Embedding(n, d)(indices).mean(axis=-2), or .sum(axis=-2)",
        "Bilinear": (
            'gt.einsum("...i,oij,...j->...o", x1, weight, x2) + bias in a Module of your own'),
        "SyncBatchNorm": "gt.distributed.convert_sync(net, comm) turns nn.BatchNorm2d into one",
        **dict.fromkeys(("DataParallel", "parallel"),
            "gt.distributed.DataParallel(net, comm), a process for each GPU"),
        "AlphaDropout": (
            "nn.Dropout(p); the one that keeps the mean and variance of SELU is not there"),
        "FeatureAlphaDropout": (
            "nn.Dropout2d(p); the one that keeps the mean and variance of SELU is not there"),
        "RReLU": "nn.LeakyReLU(slope), or nn.PReLU()",
        "Softmax2d": "nn.Softmax(dim=-3)",
        "LocalResponseNorm": (
            "nn.GroupNorm(groups, channels), or x / (k + alpha * F.avg_pool2d over channels of x "
            "* x) ** beta"),
        "CrossMapLRN2d": "nn.GroupNorm(groups, channels)",
        "AdaptiveLogSoftmaxWithLoss": "nn.CrossEntropyLoss()(linear(x), target), of all classes",
        "MaxUnpool1d": "nn.Upsample or nn.ConvTranspose1d; pools give no indices",
        "MaxUnpool2d": "nn.Upsample or nn.ConvTranspose2d; pools give no indices",
        "FractionalMaxPool2d": "nn.AdaptiveMaxPool2d(size)",
        "LPPool1d": "(nn.AvgPool1d(k)(x ** p) * k) ** (1 / p)",
        "LPPool2d": "(nn.AvgPool2d(k)(x ** p) * k * k) ** (1 / p)",
        "MultiLabelSoftMarginLoss": "nn.BCEWithLogitsLoss()",
        "MultiLabelMarginLoss": "nn.BCEWithLogitsLoss() for several labels of an example",
        "MultiMarginLoss": (
            "nn.CrossEntropyLoss(), or F.relu(margin - x[rows, target][:, None] + x) summed over "
            "the other classes"),
        "TripletMarginWithDistanceLoss": "F.relu(margin + distance(a, p) - distance(a, n)).mean()",
        "UpsamplingNearest2d": "nn.Upsample(scale_factor=2)",
        "UpsamplingBilinear2d": 'nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)',
        "RNNBase": "nn.RNN, nn.LSTM or nn.GRU",
        "LinearCrossEntropyLoss": "nn.CrossEntropyLoss()(linear(x), target)",
        "grad": "gt.grad(loss, [x]); nn.init and nn.utils are there",
        **dict.fromkeys(("quantized", "qat", "quantizable", "intrinsic"),
            "there is no quantization; gt.autocast() computes in half types"),
        "Dense": "nn.Linear(in_features, out_features)",
    },
    "gtensor.nn.Module": {
        **dict.fromkeys((
            "register_backward_hook", "register_full_backward_hook",
            "register_full_backward_pre_hook"), (
                "module.register_forward_hook(hook), in which output.register_hook(f) calls f "
                "with the gradient")),
        "type": "module.to(dtype)",
        "share_memory": "a module belongs to its process; gt.distributed trains in several",
        "compile": "gt.capture(step) records a step that calls the module, and replays it",
        "to_empty": "module.to(device)",
        "set_submodule": "setattr(module.get_submodule(parent), name, new)",
        **dict.fromkeys(("get_extra_state", "set_extra_state"),
            "module.register_buffer(name, tensor) is in the state"),
        **dict.fromkeys((
            "register_load_state_dict_post_hook", "register_load_state_dict_pre_hook"),
            "net.load_state_dict({**state, ...}) with the keys renamed before"),
        **dict.fromkeys(("register_state_dict_post_hook", "register_state_dict_pre_hook"),
            "{name: f(value) for name, value in net.state_dict().items()}"),
    },
    "gtensor.nn.functional": {
        "conv3d": (
            "there are no convolutions of volumes yet; F.conv2d on x.swapaxes(1, 2).reshape((N * "
            "D, C, H, W)) takes each slice"),
        "conv_transpose3d": (
            "there are no convolutions of volumes yet; F.conv_transpose2d on x.swapaxes(1, "
            "2).reshape((N * D, C, H, W)) takes each slice"),
        "max_pool3d": (
            "there are no pools of volumes yet; F.max_pool2d on x.swapaxes(1, 2).reshape((N * D, "
            "C, H, W)) takes each slice"),
        "avg_pool3d": (
            "there are no pools of volumes yet; F.avg_pool2d on x.swapaxes(1, 2).reshape((N * D, "
            "C, H, W)) takes each slice"),
        "adaptive_avg_pool3d": (
            "x.mean(axis=(2, 3, 4), keepdims=True) for one value; there are no pools of volumes "
            "yet"),
        "adaptive_max_pool3d": (
            "gt.max(x, axis=(2, 3, 4), keepdims=True) for one value; there are no pools of "
            "volumes yet"),
        "adaptive_max_pool1d": "F.adaptive_max_pool2d(x[:, :, None], (1, size))[:, :, 0]",
        "grid_sample": (
            "not there yet: F.interpolate resizes, and x[:, :, rows, columns] with integer index "
            "tensors takes pixels anywhere; four of them, weighted, are bilinear"),
        "affine_grid": (
            "not there yet: gt.meshgrid(gt.linspace(-1, 1, h), gt.linspace(-1, 1, w), "
            'indexing="ij") makes the grid, a product with theta moves it'),
        "ctc_loss": (
            "there is no CTC loss yet; gt.logsumexp over alignments, step by step, writes one"),
        "embedding_bag": "F.embedding(indices, weight).mean(axis=-2), or .sum(axis=-2)",
        "bilinear": 'gt.einsum("...i,oij,...j->...o", x1, weight, x2) + bias',
        "local_response_norm": (
            "F.group_norm(x, groups), or x / (k + alpha * mean of x * x over channels nearby) ** "
            "beta"),
        "alpha_dropout": "F.dropout(x, p)",
        "feature_alpha_dropout": "F.dropout2d(x, p)",
        "rrelu": "F.leaky_relu(x, slope), or F.prelu(x, weight)",
        "rrelu_": "F.leaky_relu_(x, slope)",
        "max_unpool1d": "F.interpolate, or F.conv_transpose1d; pools give no indices",
        "max_unpool2d": "F.interpolate, or F.conv_transpose2d; pools give no indices",
        "max_pool1d_with_indices": "F.max_pool1d gives the values; pools give no indices",
        "max_pool2d_with_indices": "F.max_pool2d gives the values; pools give no indices",
        "adaptive_max_pool2d_with_indices": (
            "F.adaptive_max_pool2d gives the values; pools give no indices"),
        "fractional_max_pool2d": "F.adaptive_max_pool2d(x, size)",
        "lp_pool1d": "(F.avg_pool1d(x ** p, k) * k) ** (1 / p)",
        "lp_pool2d": "(F.avg_pool2d(x ** p, k) * k * k) ** (1 / p)",
        "multi_margin_loss": (
            "F.cross_entropy(x, target), or F.relu(margin - x[rows, target][:, None] + x) summed "
            "over the other classes"),
        "multilabel_margin_loss": (
            "F.binary_cross_entropy_with_logits(x, target) for several labels of an example"),
        "multilabel_soft_margin_loss": "F.binary_cross_entropy_with_logits(x, target)",
        "triplet_margin_with_distance_loss": (
            "F.relu(margin + distance(a, p) - distance(a, n)).mean()"),
        "pdist": "gt.linalg.norm(x[:, None] - x, axis=-1) has all distances",
        "multi_head_attention_forward": (
            "nn.MultiheadAttention(width, heads), or F.scaled_dot_product_attention(q, k, v)"),
        "dot_product_attention": (
            "F.scaled_dot_product_attention(q, k, v), whose heads come before the positions"),
        "upsample_nearest": "F.interpolate(x, scale_factor=2)",
        "upsample_bilinear": (
            'F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)'),
        "linear_cross_entropy": "F.cross_entropy(F.linear(x, weight), target)",
        "standardize": "F.layer_norm(x, x.shape[-1:])",
        "grad": "gt.grad(loss, [x])",
    },
    "gtensor.nn.init": {
        **dict.fromkeys(("dirac", "dirac_"), "w[...] = 0, then w[:, :, middle] = gt.eye(channels)"),
        **dict.fromkeys(("sparse", "sparse_"), (
                "nn.init.normal_(w, 0, std), then w[...] = w * gt.random.bernoulli(1 - sparsity,"
                " w.shape) under gt.no_grad()")),
        "he_normal": 'nn.init.kaiming_normal_(w, nonlinearity="relu")',
        "he_uniform": 'nn.init.kaiming_uniform_(w, nonlinearity="relu")',
        "glorot_normal": "nn.init.xavier_normal_(w)",
        "glorot_uniform": "nn.init.xavier_uniform_(w)",
        "lecun_normal": 'nn.init.kaiming_normal_(w, nonlinearity="linear")',
        "lecun_uniform": 'nn.init.kaiming_uniform_(w, nonlinearity="linear")',
        "truncated_normal": "nn.init.trunc_normal_(w)",
        "zeros": "nn.init.zeros_(w)",
        "ones": "nn.init.ones_(w)",
    },
    "gtensor.nn.utils": {
        **dict.fromkeys(("pack_padded_sequence", "pack_sequence", "PackedSequence"), (
                "LSTM, GRU and RNN take padded batches, of nn.utils.pad_sequence; "
                "outputs[lengths - 1, gt.arange(n)] are the last ones of (T, N, C)")),
        "pad_packed_sequence": "outputs of LSTM, GRU and RNN are padded batches already",
        **dict.fromkeys(("unpad_sequence", "unpack_sequence"),
            "[x[:n, i] for i, n in enumerate(lengths)]"),
        "invert_permutation": "gt.argsort(permutation)",
        "get_total_norm": (
            'nn.utils.clip_grad_norm_(parameters, float("inf")) gives the norm and changes '
            "nothing"),
        "clip_grads_with_norm_": "nn.utils.clip_grad_norm_(parameters, max_norm)",
        **dict.fromkeys(("spectral_norm", "remove_spectral_norm"), (
                "nn.utils.weight_norm is there; a spectral norm is not: weight / "
                "gt.linalg.svdvals(weight)[0] in a forward of your own")),
        **dict.fromkeys(("parametrize", "parametrizations"), (
                "nn.utils.weight_norm(module), or a property of your own that computes the "
                "weight")),
        "prune": "module.weight[mask] = 0 under gt.no_grad()",
        "stateless": "gt.func.functional_call(module, state, args)",
        "skip_init": "the module itself: its initial values cost little",
        **dict.fromkeys((
            "fuse_conv_bn_eval", "fuse_conv_bn_weights", "fuse_linear_bn_eval",
            "fuse_linear_bn_weights"),
            "net.eval() normalizes by fixed numbers; nothing is fused before"),
    },
    "gtensor.optim": {
        "LBFGS": (
            'not there yet: scipy.optimize.minimize(f, x0, jac=True, method="L-BFGS-B") with '
            "gradients of gt.value_and_grad, see docs/tutorials/scipy_and_sklearn.md"),
        "NAdam": "gt.optim.AdamW(parameters); NAdam is not there",
        "RAdam": "gt.optim.AdamW(parameters); RAdam is not there",
        "Adamax": "gt.optim.AdamW(parameters); Adamax is not there",
        "Adafactor": "gt.optim.AdamW(parameters); Adafactor is not there",
        "Muon": "gt.optim.AdamW(parameters); Muon is not there",
        "Adadelta": "gt.optim.AdamW(parameters); Adadelta is not there",
        "ASGD": "gt.optim.SGD(parameters), averaged by gt.optim.EMA",
        "Rprop": "gt.optim.RMSprop(parameters), or Lion, which follows the sign",
        "SparseAdam": "gt.optim.Adam(parameters): gradients are dense",
        "swa_utils": "gt.optim.EMA(net) averages weights",
        "apply_updates": "optimizer.step()",
    },
    "gtensor.optim.lr_scheduler": {
        "MultiplicativeLR": (
            "LambdaLR(optimizer, lambda step: factor ** step), the product of the factors so far"),
        "ChainedScheduler": (
            "LambdaLR(optimizer, lambda step: f(step) * g(step)); SequentialLR runs one after "
            "another"),
        "CyclicLR": (
            "OneCycleLR(optimizer, max_lr, total_steps) for one cycle, LambdaLR(optimizer, f) for"
            " more"),
    },
    "gtensor.data": {
        "RandomSampler": "DataLoader(data, shuffle=True)",
        "SequentialSampler": "DataLoader(data): the order is that of the dataset",
        "SubsetRandomSampler": "DataLoader(Subset(data, indices), shuffle=True)",
        "BatchSampler": "DataLoader(data, batch_size, sampler=sampler, drop_last=drop_last)",
        "Sampler": (
            "any object with __iter__ over item numbers is a sampler: DataLoader(data, "
            "sampler=it)"),
        "WeightedRandomSampler": (
            "DataLoader(data, sampler=gt.random.multinomial(weights, count, True).tolist())"),
        "DistributedSampler": "DataLoader(data, shard=(comm.rank, comm.size), seed=0)",
        "StackDataset": "ArrayDataset(a, b) gives tuples of items",
        "ChainDataset": "an IterableDataset whose __iter__ is that of itertools.chain(a, b)",
        "get_worker_info": (
            "workers are threads that share the dataset: nothing is to be split between them"),
        "default_convert": "gt.asarray(item)",
        "IterDataPipe": "IterableDataset, or any iterable that can be begun again",
        "MapDataPipe": "Dataset: __len__ and __getitem__",
    },
    "gtensor.func": {
        "grad_and_value": "gt.value_and_grad(f), whose results are the other way round",
        "vhp": "gt.hvp, as Hessians are symmetric",
        "stack_module_state": (
            "{name: gt.stack(tensors) for each name of the state dicts}, then gt.vmap of "
            "gt.functional_call"),
        "functionalize": "functions run as they are",
        "debug_unwrap": "a tensor within a transform has no values to see",
        "replace_all_batch_norm_modules_": "net.eval(), or nn.GroupNorm for nn.BatchNorm2d",
        "make_functional": "gt.functional_call(net, dict(net.named_parameters()), x)",
        "jit": "gt.capture(step) records a training step and replays it",
        "vectorize": "gt.vmap(f)",
        "rearrange": "x.permute_dims(axes) and x.reshape(shape)",
    },
    "gtensor.composed.cuda": {
        "Event": 'gt.Event("cuda")', "Stream": 'gt.stream("cuda")', "amp": "gt.amp",
        "CUDAGraph": "gt.Graph()", "current_device": 'gt.device("cuda").index',
        "get_device_name": 'cupy.cuda.runtime.getDeviceProperties(0)["name"]',
        "memory_summary": 'gt.memory.summary("cuda")',
        "set_device": 'gt.set_default_device("cuda:1")', "stream": 'gt.stream("cuda")',
    },
    "gtensor.autograd": {
        "function": "gt.autograd.Function and gt.autograd.once_differentiable",
        "FunctionCtx": "a gt.autograd.Function gets it as ctx",
        "Variable": "a Tensor itself: gt.tensor(x, requires_grad=True)",
        "backward": "loss.backward()",
        "functional": "gt.func, whose functions (jacobian, hessian, hvp, vjp, jvp) gt has, too",
        "gradcheck": "gt.testing.gradcheck",
    },
}
