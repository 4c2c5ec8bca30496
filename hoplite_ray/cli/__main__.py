"""`python -m hoplite_ray.cli` is the `hoplite-ray` command."""

import sys

from hoplite_ray.cli import main

if __name__ == "__main__":
    sys.exit(main())
