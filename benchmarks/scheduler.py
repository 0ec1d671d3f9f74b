#!/usr/bin/env python3
"""What the scheduler costs: ``di bench scheduler`` with the options given.

    python benchmarks/scheduler.py --peer-python /path/to/env/bin/python

The environment of the peer has what ``benchmarks/peers/requirements-vllm.txt`` names.
"""

from __future__ import annotations

import sys

from di_engine.cli import run

if __name__ == "__main__":
    sys.exit(run(["bench", "scheduler", *sys.argv[1:]]))
