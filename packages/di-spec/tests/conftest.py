"""How long hypothesis waits for the tests of this package."""

from hypothesis import HealthCheck, settings

# A busy machine is no defect.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
