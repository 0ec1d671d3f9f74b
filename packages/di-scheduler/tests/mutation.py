"""Deliberate one-line defects, each of which a test of this package has to notice."""

from typing import NamedTuple


class Mutation(NamedTuple):
    """A defect against one property of the scheduler spec, section 17."""

    property: int
    file: str
    """Source file, relative to the package."""
    before: str
    """A line, or the part of one, that occurs once in the file."""
    after: str
    """What stands there instead."""
    test: str
    """Node id of the test that fails then, relative to the package."""
