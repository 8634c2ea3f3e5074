"""``python -m runyard_api.cli``: the command, for where its script is not on the path."""

import sys

from .main import main

sys.exit(main())
