"""The run-time side: load packaged kernels, pick the variant that fits, call it.

Needs the standard library and apache-tvm-ffi, and of tlaot only ``errors``, ``target`` and ``manifest``.
"""
