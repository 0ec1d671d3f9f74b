"""Sizes of the Engram hash tables: consecutive unused primes (checkpoint spec, 8.1)."""

from __future__ import annotations

from itertools import count, islice

# Strong pseudoprime tests to these bases decide primality exactly below this bound; int32 row numbers fit.
_WITNESSES = (2, 3, 5, 7)
_EXACT_BELOW = 3_215_031_751


def is_prime(number: int) -> bool:
    """Whether ``number`` is prime (exact below 3,215,031,751; larger numbers raise ValueError)."""
    if number >= _EXACT_BELOW:
        raise ValueError(f"number = {number} is out of range; allowed: below {_EXACT_BELOW}")
    if number < 2:
        return False
    for prime in _WITNESSES:
        if number % prime == 0:
            return number == prime
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return all(_passes(number, base, odd, twos) for base in _WITNESSES)


def _passes(number: int, base: int, odd: int, twos: int) -> bool:
    power = pow(base, odd, number)
    if power in (1, number - 1):
        return True
    for _ in range(twos - 1):
        power = power * power % number
        if power == number - 1:
            return True
    return False


def engram_primes(
    num_layers: int, vocab_size: int, max_ngram_size: int, num_heads: int
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Table sizes ``[layer][order - 2][head]``, layers in the order of ``engram_layer_ids``.

    The specification restarts the search at ``vocab_size - 1`` for every order and skips primes that an earlier
    layer, order or head uses. Those are all the primes met so far, so one search that never turns back finds the same.
    """
    primes = (number for number in count(vocab_size) if is_prime(number))
    return tuple(
        tuple(tuple(islice(primes, num_heads)) for _ in range(2, max_ngram_size + 1))
        for _ in range(num_layers)
    )
