"""`python -m skipless.cli`, as `torchrun` starts it."""

import os
import sys

from . import main

code = main()
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    # All files are closed by now. Threads of PyTorch's process groups may not be, and one that is
    # still running when the interpreter takes itself apart aborts it ("terminate called").
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
sys.exit(code)
