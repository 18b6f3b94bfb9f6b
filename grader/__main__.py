"""`python -m grader`."""

import os
import sys

# `python -m` puts the current folder first on the path. In a submission's folder it would import
# any file there that has the name of a library.
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:] = [_HERE, *(p for p in sys.path if p not in ("", os.getcwd(), _HERE))]


def _main() -> int:
    """Run the command, or print which package is missing. `doctor` needs none."""
    if sys.argv[1:2] == ["doctor"]:
        from grader.commands.doctor.command import main as doctor

        return doctor(sys.argv[2:])
    if sys.version_info < (3, 11):  # noqa: UP036 - an older Python is to show this message
        got = ".".join(map(str, sys.version_info[:3]))
        sys.stderr.write(f"grader: got Python {got}, expected 3.11 or newer; run `make doctor`\n")
        return 4
    try:
        from grader.commands.cli import main
    except ModuleNotFoundError as error:
        if (error.name or "grader").partition(".")[0] in ("grader", "given", "reference"):
            raise
        sys.stderr.write(
            f"grader: {error.name} is not installed for {sys.executable}; run `make setup`, then"
            f" '{_HERE}/.venv/bin/python' -m grader; `make doctor` shows more\n"
        )
        return 4
    return main()


if __name__ == "__main__":
    sys.exit(_main())
