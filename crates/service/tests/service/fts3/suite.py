"""Everything that the fts3 client 3.14.2 offers, against what the reference of the REST API says.

Run by the test `fts`; words given to it choose the cases that contain one of them."""

import sys

import bindings  # noqa: F401  (each module adds its cases)
import certificates  # noqa: F401
import isolation  # noqa: F401
import members  # noqa: F401
import options  # noqa: F401
import tokens  # noqa: F401
import tools  # noqa: F401
from not_tried import not_tried
from world import main

sys.exit(main(not_tried(), sys.argv[1:]))
