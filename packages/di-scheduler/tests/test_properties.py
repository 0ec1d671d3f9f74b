"""Each property by itself: random histories of the native scheduler with one check, and without the model.

`test_against_model.py` looks at all of them at once. Here it shows which one notices a defect, which is what the table
of `mutations_core.py` claims.
"""

import random
from pathlib import Path

import pytest
from di_scheduler import EngineKind

from .histories import History, random_config
from .properties import ALWAYS, WHERE
from .properties_plan import AFTER_PLAN
from .watched import Checks, Watched

KINDS = [EngineKind.NORMAL] * 14 + [EngineKind.PREFILL_ONLY] * 3 + [EngineKind.DECODE_ONLY] * 3
MIX = ["add"] * 6 + ["plan"] * 14 + ["commit"] * 3 + ["fork"] * 3 + ["finish", "hand_over", "pass_time"] * 2
MIX += ["receive", "set_ready", "set_cost", "plan_one_kind"]
NOTHING = Checks({}, {}, resolved=False, failures=False)
ONE_BY_ONE = (
    {name: Checks({name: check}, {}, resolved=False, failures=False) for name, check in ALWAYS.items()}
    | {name: Checks({}, {name: check}, resolved=False, failures=False) for name, check in AFTER_PLAN.items()}
    | {
        "24, 25 resolved plans": Checks({}, {}, resolved=True, failures=False),
        "41 failures": Checks({}, {}, resolved=False, failures=True),
        "38, 44 nothing is left": NOTHING,
    }
)


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_property(name: str) -> None:
    for seed, kind in enumerate(KINDS):
        rng = random.Random(seed)
        config = random_config(rng, kind)
        history = History(config, Watched(config, ONE_BY_ONE[name]), crowd=12)
        for _ in range(200):
            getattr(history, rng.choice(MIX))(rng)
        history.close()


def test_the_table_names_every_property_and_what_looks_at_it() -> None:
    assert sorted(WHERE) == list(range(1, 46))
    for place in WHERE.values():
        file, _, names = place.partition("::")
        text = (Path(__file__).parent / file).read_text()
        assert all(f" {name}" in text for name in names.split(".") if names)
