"""Forty mistakes of users, one a line, that type checkers must find; this file prints the program.

`tests/test_types.py` runs mypy on it. pyright must report each line, too (docs/testing.md).
"""

BEFORE = """\
import numpy as np
import gtensor as gt
def energy(x: gt.Tensor, scale: float = 1.0) -> gt.Tensor:
    return (x * x).sum() * scale
x = gt.ones(3)
net = gt.nn.Linear(3, 2)
stack = gt.nn.Sequential(net, gt.nn.ReLU())
arrays = gt.data.ArrayDataset(np.ones(3), x)
loader = gt.data.DataLoader(arrays, batch_size=2)
"""
MISTAKES = {  # a line -> what mypy says of it
    # elementwise functions
    'gt.exp("a")': 'Argument 1 to "exp" has incompatible type "str"',
    "gt.exp(net)": 'Argument 1 to "exp" has incompatible type "Linear"',
    "gt.exp()": 'Too few arguments for "exp"',
    "gt.exp(x, x)": 'Too many arguments for "exp"',
    "gt.sqrt(x, axis=0)": 'Unexpected keyword argument "axis" for "sqrt"',
    "gt.add(x)": 'Too few arguments for "add"',
    "gt.maximum(x, {1: 2})": 'Argument 2 to "maximum" has incompatible type "dict[int, int]"',
    "gt.less(x, None)": 'Argument 2 to "less" has incompatible type "None"',
    "y: int = gt.exp(x)": 'variable has type "int"',
    "gt.log(x).shap": '"Tensor" has no attribute "shap"',
    # names of rooms
    "gt.summ(x)": 'has no attribute "summ"',
    "gt.linalg.inverze(x)": 'has no attribute "inverze"',
    "gt.nn.functional.gellu(x)": 'has no attribute "gellu"',
    "gt.memory.stat()": 'has no attribute "stat"',
    "gt.tensor()": 'Missing positional argument "data" in call to "tensor"',
    # tensors
    "x.shap": '"Tensor" has no attribute "shap"',
    'x + "a"': 'Unsupported operand types for + ("Tensor" and "str")',
    "x @ None": 'Unsupported operand types for @ ("Tensor" and "None")',
    "x.shape.append(3)": '"tuple[int, ...]" has no attribute "append"',
    "x.item().sum()": 'has no attribute "sum"',
    'x.sum(axis="0")': 'Argument "axis" to "sum" of "Methods" has incompatible type "str"',
    'gt.zeros((3, "4"))': 'Argument 1 to "zeros" has incompatible type "tuple[int, str]"',
    # modules and optimizers
    "net.forwrd(x)": '"Linear" has no attribute "forwrd"',
    "net(x).forward": '"Tensor" has no attribute "forward"',
    "net(3)": 'Argument 1 to "__call__" of "Hooked" has incompatible type "int"',
    "gt.nn.Linear(3)": 'Missing positional argument "out_features" in call to "Linear"',
    "stack[0].weigth": '"Linear" has no attribute "weigth"',
    "stack[1].weight": '"ReLU" has no attribute "weight"',
    "gt.nn.Sequential([net])": 'No overload variant of "Sequential" matches',
    "gt.nn.Sequential(gt.nn.functional.relu)": 'No overload variant of "Sequential" matches',
    "gt.optim.Adam(net)": 'Argument 1 to "Adam" has incompatible type "Linear"',
    # derivatives
    "gt.grad(energy)(x).shap": '"Tensor" has no attribute "shap"',
    "gt.grad(energy)(x, scael=2.0)": 'Unexpected keyword argument "scael"',
    "gt.grad(energy(x), [x], allow_unused=True)[0].sum()": 'Item "None" of "Tensor | None"',
    "gt.grad(3)": 'No overload variant of "grad" matches argument type "int"',
    "gt.value_and_grad(energy)(x).sum()": '"tuple[Tensor, Tensor]" has no attribute "sum"',
    "gt.jvp(energy, (x,), (x,)).sum()": '"tuple[Tensor, Tensor]" has no attribute "sum"',
    "gt.vmap(energy)(x, 1.0, x)": "Too many arguments",
    "gt.custom_vjp(energy)(x, scael=2.0)": 'Unexpected keyword argument "scael"',
    'gt.op("own", cpu=abs, gpu=None, views=True)': 'Unexpected keyword argument "views" for "op"',
    'gt.op("own", cpu=abs, gpu=None, autocast="half")': 'Argument "autocast" to "op" has incompat',
    # data
    "gt.data.DataLoader(arrays, batchsize=2)": 'Unexpected keyword argument "batchsize"',
    "next(iter(loader)).shape": '"tuple[Tensor, ...]" has no attribute "shape"',
}
PROGRAM = BEFORE + "\n".join(MISTAKES) + "\n"

if __name__ == "__main__":
    print(PROGRAM, end="")
