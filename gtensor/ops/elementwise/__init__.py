"""Elementwise ops."""

from typing import TYPE_CHECKING

from gtensor.ops.elementwise.arithmetic import *
from gtensor.ops.elementwise.comparison import *
from gtensor.ops.elementwise.complex_parts import *
from gtensor.ops.elementwise.exponentials import *
from gtensor.ops.elementwise.rounding import *
from gtensor.ops.elementwise.selection import *
from gtensor.ops.elementwise.trigonometry import *
from gtensor.system.package_names import declared

if not TYPE_CHECKING:
    __all__ = declared(__name__)
