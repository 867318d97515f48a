"""Scans along an axis. `linear_scan` comes with `gtensor.nn`."""

from typing import TYPE_CHECKING

from gtensor.ops.scan.products import *
from gtensor.ops.scan.scan import *
from gtensor.system.package_names import declared

if not TYPE_CHECKING:
    __all__ = declared(__name__)
