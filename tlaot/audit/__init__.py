"""The audit: whether packaged kernels are what was promised, whole, and free of what is the build machine's.

It runs at the end of every build and as ``tlaot check``. Each check is a function that yields findings; ``audit.py`` has their list.
"""

from .audit import Audited, audit_folder, audit_found, audit_wheel
from .build import audit_built_folder, audit_built_wheel, fail_build
from .finding import Finding, show_findings
from .seal import seal
from .subject import Demands, Promise, promise_of, variants_of

__all__ = [
    "Audited",
    "Demands",
    "Finding",
    "Promise",
    "audit_built_folder",
    "audit_built_wheel",
    "audit_folder",
    "audit_found",
    "audit_wheel",
    "fail_build",
    "promise_of",
    "seal",
    "show_findings",
    "variants_of",
]
