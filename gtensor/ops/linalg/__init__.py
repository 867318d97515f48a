"""Matrix products, decompositions and linear systems."""

from typing import TYPE_CHECKING

from gtensor.ops.linalg.contractions import *
from gtensor.ops.linalg.decompositions import *
from gtensor.ops.linalg.einstein import *
from gtensor.ops.linalg.feed_forward import *
from gtensor.ops.linalg.gemm import *
from gtensor.ops.linalg.linear import *
from gtensor.ops.linalg.multi_output import *
from gtensor.ops.linalg.norms import *
from gtensor.ops.linalg.singular_values import *
from gtensor.ops.linalg.solving import *
from gtensor.system.package_names import declared

if not TYPE_CHECKING:
    __all__ = declared(__name__)
