"""Hypothesis profiles: a fixed set of examples by default, many random ones with --hypothesis-profile=nightly."""

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "di-scheduler",
    derandomize=True,
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "nightly", max_examples=3000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.fixture
def nightly(request: pytest.FixtureRequest) -> bool:
    """Whether this is the long run."""
    return bool(request.config.getoption("--hypothesis-profile", default=None) == "nightly")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--hypothesis-profile") is None:
        settings.load_profile("di-scheduler")
