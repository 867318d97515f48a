"""Reductions."""

from typing import TYPE_CHECKING

from gtensor.ops.reduce.reductions import *
from gtensor.ops.reduce.statistics import *
from gtensor.system.package_names import declared

if not TYPE_CHECKING:
    __all__ = declared(__name__)
