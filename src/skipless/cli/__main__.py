"""`python -m skipless.cli`."""

import sys

from . import main

sys.exit(main())
