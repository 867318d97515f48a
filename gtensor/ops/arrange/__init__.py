"""Shape, joining, indexing and padding: elements are moved, not computed."""

from typing import TYPE_CHECKING

from gtensor.ops.arrange.class_indices import *
from gtensor.ops.arrange.embedding import *
from gtensor.ops.arrange.flip_roll import *
from gtensor.ops.arrange.gather_along import *
from gtensor.ops.arrange.index import *
from gtensor.ops.arrange.joining import *
from gtensor.ops.arrange.padding import *
from gtensor.ops.arrange.shape import *
from gtensor.ops.arrange.triangles import *
from gtensor.ops.arrange.writing import *
from gtensor.system.package_names import declared

if not TYPE_CHECKING:
    __all__ = declared(__name__)
