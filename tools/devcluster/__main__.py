"""The command line: python -m devcluster."""

import sys

from devcluster.cli import main

sys.exit(main(sys.argv[1:]))
