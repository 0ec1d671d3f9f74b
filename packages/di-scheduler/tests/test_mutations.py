"""Every property has a defect that a test notices: see `mutants.py`. In the suite one for each, nightly all."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from . import mutations_core, mutations_flops, mutations_lockstep, mutations_speculation
from .mutants import Change, MutationError, Runner, build, function_bodies, mutate, patched_package, tools

TABLES = (
    mutations_core.MUTATIONS,
    mutations_speculation.MUTATIONS,
    mutations_lockstep.MUTATIONS,
    mutations_flops.MUTATIONS,
)
MUTATIONS = dict(enumerate(chain.from_iterable(TABLES), start=1))
LONG = {33, 34, 35}  # groups of ranks take seconds to disagree


def change(number: int) -> Change:
    mutation = MUTATIONS[number]
    return Change(number, mutation.before, mutation.after)


def chosen(nightly: bool) -> list[int]:
    """All, or the first one of each property."""
    if nightly:
        return list(MUTATIONS)
    first: dict[int, int] = {}
    for number, mutation in MUTATIONS.items():
        first.setdefault(mutation.property, number)
    return sorted(number for about, number in first.items() if about not in LONG)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "number" in metafunc.fixturenames:
        numbers = chosen(metafunc.config.getoption("--hypothesis-profile", default=None) == "nightly")
        ids = [f"{MUTATIONS[n].property}-{Path(MUTATIONS[n].file).stem}-{n}" for n in numbers]
        metafunc.parametrize("number", numbers, ids=ids)


@pytest.fixture(scope="module")
def package() -> Path:
    """The package with all native defects, none of them on."""
    missing = tools()
    if missing is not None:
        pytest.skip(missing)
    changes: dict[str, list[Change]] = {}
    for number, mutation in MUTATIONS.items():
        if mutation.file.startswith("csrc/"):
            changes.setdefault(mutation.file, []).append(change(number))
    return build(changes)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    running = Runner()
    yield running
    running.close()


@pytest.mark.timeout(900)  # the first one compiles
def test_a_defect_is_noticed(number: int, package: Path, runner: Runner) -> None:
    mutation = MUTATIONS[number]
    if mutation.file.startswith("csrc/"):
        verdict = runner.run(package, [mutation.test], number)
    else:
        verdict = runner.run(patched_package(package, change(number), mutation.file), [mutation.test])
    assert verdict.failed, f"{mutation} passes its test\n{verdict.output}"


@pytest.mark.timeout(900)
def test_without_a_defect_the_tests_pass(package: Path, runner: Runner, nightly: bool) -> None:
    tests = sorted({mutation.test for mutation in MUTATIONS.values()})
    verdict = runner.run(package, tests if nightly else [mutations_core.MODEL], timeout_s=600)
    assert not verdict.failed, verdict.output


def test_every_property_has_a_defect() -> None:
    assert {mutation.property for mutation in MUTATIONS.values()} == set(range(1, 46))


SOURCE = """#include <vector>
namespace a {
// int commented() { return 0; }
struct Pair { int x = 1; int sum() const { return x + 1; } };
int outer(int n) {
  const auto twice = [](int i) { return 2 * i; };
  for (int i = 0; i < n; ++i) { n -= 1; }
  return twice(n);
}
void Pair_reset(Pair& pair) { pair.x = 0; }
}  // namespace a
"""


def test_bodies_of_functions_are_found_where_they_are_defined() -> None:
    bodies = [SOURCE[opened : closed + 1] for opened, closed in function_bodies(SOURCE)]
    assert [body.split()[1] for body in bodies] == ["return", "const", "pair.x"]
    assert bodies[1].endswith("return twice(n);\n}")


def test_defects_stand_beside_the_body_as_it_is() -> None:
    changes = [Change(3, "2 * i", "3 * i"), Change(4, "n -= 1;", ""), Change(5, "pair.x = 0", "pair.x = 9")]
    changed = mutate(SOURCE, changes, "file")
    assert changed.count("return 2 * i") == 2  # in defect 4 and as it is
    assert changed.count("return 3 * i") == 1
    assert "if (di_mutants::defect == 5) { pair.x = 9;  return; }" in changed
    assert mutate(SOURCE, [], "file") == SOURCE


@pytest.mark.parametrize(
    "before, match", [("x", "occurs"), ("absent", "occurs 0 times"), ("namespace a {", "not inside the body")]
)
def test_a_defect_that_does_not_fit_is_refused(before: str, match: str) -> None:
    with pytest.raises(MutationError, match=match):
        mutate(SOURCE, [Change(1, before, "")], "file")
