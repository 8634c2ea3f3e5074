"""Load an app in a process of its own: ``python -m runyard_api.cli.dev.app_check module:app``.

If the app cannot be loaded, the last line of standard output is the error as JSON, and the exit status is REFUSED.
"""

from __future__ import annotations

import json
import sys
from typing import Final

from runyard.app import load_app
from runyard.errors import RunyardError

from ..view import output

REFUSED: Final = 9
"""Exit status if the app cannot be loaded."""

if __name__ == "__main__":
    try:
        load_app(sys.argv[1])
    except RunyardError as error:
        output.print_line("")  # ends a line of the app
        output.print_line(json.dumps(error.to_dict()))
        sys.exit(REFUSED)
