"""``python -m tlaot``: the command ``tlaot``, of this very interpreter."""

import sys

from .cli import main

sys.exit(main())
