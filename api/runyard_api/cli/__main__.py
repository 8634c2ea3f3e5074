"""The ``runyard`` command as ``python -m runyard_api.cli``, for environments where its script is not on the path."""

import sys

from .main import main

sys.exit(main())
