"""`python -m grader`."""

import os
import sys

# `python -m` puts the current folder first on the path. Started inside a submission's folder, that
# would import whatever lies there under the name of a library.
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:] = [_HERE, *(p for p in sys.path if p not in ("", os.getcwd(), _HERE))]

from grader.cli import main  # noqa: E402

sys.exit(main())
