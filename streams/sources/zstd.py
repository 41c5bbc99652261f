"""Reading zstd: the standard library has a module for it from Python 3.14 on, and older versions install the same code as a package."""

import sys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["zstd"]
