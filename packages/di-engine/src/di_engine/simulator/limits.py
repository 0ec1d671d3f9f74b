"""How large the numbers of a simulation may be.

Virtual time is a float: up to ``MOST_SECONDS`` it tells 2 microseconds apart, which is also why a step takes at least
``LEAST_STEP``: less would not move the clock. The other bounds keep what is drawn and held within an ordinary machine's
memory and within 64-bit integers.
"""

from __future__ import annotations

MOST_SECONDS = 1e10
"""Of an arrival; Unix times fit."""
LEAST_STEP = 1e-6
"""Seconds of the shortest step."""
MOST_STEP = 1e3
"""Seconds of a step's constant and host terms."""
MOST_PER_TOKEN = 1.0
"""Seconds of a step for each row, or token of context."""

MOST_REQUESTS = 1_000_000
"""Of a synthetic trace; also of one burst."""
LEAST_RATE, MOST_RATE = 1e-3, 1e9
"""Requests a second: at the lowest rate, ``MOST_REQUESTS`` of them arrive within ``MOST_SECONDS``."""
MOST_USERS = 1_000_000
MOST_SHARE = 1e9
"""Of a class, in proportion to the others."""
MOST_TOKENS = 1 << 20
"""Of a prompt, and of an output."""
LEAST_SHAPE = 1e-6
"""The smallest exponent or sigma of a distribution of lengths: next to uniform, or fixed."""
MOST_EXPONENT = 100.0
MOST_SIGMA = 10.0

MOST_RANKS = 256
"""Ranks that vote are threads, and a vote takes as long as the slowest."""
MOST_BLOCKS = 1 << 20
"""Of one rank's pool."""
MOST_BLOCK_SIZE = 1 << 20
MOST_RUNNING = 1 << 14
"""Requests that run at once on one rank."""
MOST_ROWS = 1 << 20
"""Of one step of a rank."""
LEAST_INTERVAL, MOST_INTERVAL = 1e-3, 1e3
"""Seconds between load reports."""
MOST_REPORTS = 1000
"""Load reports of a rank that are under way at once."""
MOST_SEED = 2**64 - 1
"""The generator of the drafts' acceptance works on 64 bits."""
