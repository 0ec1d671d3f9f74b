"""``di bench kernels``: every operation of a step at the sizes of the release, beside its ceilings and a peer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches

from di_engine.benchmark.cases.attention import attention_cases
from di_engine.benchmark.cases.linear import linear_cases
from di_engine.benchmark.cases.selection import sampling_cases, selection_cases
from di_engine.benchmark.cases.step import step_cases
from di_engine.benchmark.measure import Reached, Recipe, measure, settle, using_threads

FAMILIES: dict[str, Callable[[], Iterator[Recipe]]] = {
    "linear": linear_cases,
    "attention": attention_cases,
    "top-k": selection_cases,
    "sampling": sampling_cases,
    "step": step_cases,
}
"""Recipes of cases by the name that the command line has for them."""


def kernel_recipes(families: Iterable[str], match: str = "") -> list[Recipe]:
    """Recipes of the families whose titles hold ``match``; commas, blanks and capitals make no difference, so that a
    line of the table will do."""
    part = _words(match)
    return [recipe for family in families for recipe in FAMILIES[family]() if part in _words(recipe.title)]


def nearest_titles(families: Iterable[str], match: str, most: int = 5) -> list[str]:
    """Titles of the families that are most like ``match``, the best first."""
    titles = {_words(recipe.title): recipe.title for recipe in kernel_recipes(families)}
    return [titles[words] for words in get_close_matches(_words(match), titles, most, cutoff=0.0)]


def _words(title: str) -> str:
    return " ".join(title.replace(",", " ").lower().split())


def measure_kernels(
    recipes: Sequence[Recipe],
    threads: Sequence[int],
    seconds: float,
    progress: Callable[[Reached], None] = lambda reached: None,
) -> list[Reached]:
    """Measure every case for about ``seconds`` seconds with each number of threads.

    ``progress`` is called after each measurement.
    """
    found = []
    for recipe in recipes:
        case = recipe.make()
        for count in threads:
            with using_threads(count):
                found.append(measure(case, seconds))
            progress(found[-1])
    return settle(found)
