"""`python -m netreeve`: the command, where no script is installed."""

from __future__ import annotations

import sys

from netreeve.cli.main import main

sys.exit(main())
