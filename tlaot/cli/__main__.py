"""``python -m tlaot.cli``."""

import sys

from . import main

sys.exit(main())
