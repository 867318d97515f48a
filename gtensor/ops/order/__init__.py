"""Sorting, searching and sets."""

from typing import TYPE_CHECKING

from gtensor.ops.order.searching import *
from gtensor.ops.order.sets import *
from gtensor.ops.order.sorting import *
from gtensor.system.package_names import declared

if not TYPE_CHECKING:
    __all__ = declared(__name__)
