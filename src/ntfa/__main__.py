"""`python -m ntfa` is `ntfa`."""

import sys

from ntfa.cli import main

sys.exit(main())
