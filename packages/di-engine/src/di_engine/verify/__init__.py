"""Verification of an installation: golden values, and equal bits whatever the schedule."""

from di_engine.verify.equality import Coverage, Difference, EqualityCheck, EqualityReport
from di_engine.verify.golden import Finding, FindingKind, GoldenVerification, Verdict

__all__ = [
    "Coverage",
    "Difference",
    "EqualityCheck",
    "EqualityReport",
    "Finding",
    "FindingKind",
    "GoldenVerification",
    "Verdict",
]
