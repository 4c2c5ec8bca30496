"""`python -m hoplite_ray.node` runs one node."""

import sys

from hoplite_ray.node.process import main

if __name__ == "__main__":
    sys.exit(main())
