"""Stop strings over a stream of text pieces."""

from __future__ import annotations

from collections.abc import Sequence


class _Pattern:
    """Knuth-Morris-Pratt automaton of one stop string: how much of it the text so far ends with."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._fallback = [0] * len(text)
        length = 0
        for index in range(1, len(text)):
            while length and text[index] != text[length]:
                length = self._fallback[length - 1]
            if text[index] == text[length]:
                length += 1
            self._fallback[index] = length

    def feed(self, character: str) -> bool:
        """Advance by one character; True when the stop string is complete. Call no more after that."""
        while self.matched and character != self.text[self.matched]:
            self.matched = self._fallback[self.matched - 1]
        if character == self.text[self.matched]:
            self.matched += 1
        return self.matched == len(self.text)


class StopMatcher:
    """Finds the first stop string in a stream and lets through only text that can no longer belong to one.

    "First" is the one that completes first; of several that complete on the same character, the longest (it
    starts earliest). The result does not depend on how the text is cut into pieces, and each character costs
    O(1) per stop string.
    """

    def __init__(self, stops: Sequence[str], include_stop_str_in_output: bool = False) -> None:
        if any(not stop for stop in stops):
            raise ValueError(f"stops: got {list(stops)!r}, allowed: non-empty strings")
        self._patterns = [_Pattern(stop) for stop in sorted(dict.fromkeys(stops), key=len, reverse=True)]
        self._include = include_stop_str_in_output
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string found, if any."""
        return self._matched

    def push(self, text: str) -> str:
        """Take the next piece of text and return what may be shown now.

        After a match the rest of the text, and every later piece, is dropped.
        """
        if self._matched is not None:
            return ""
        if not self._patterns:
            return text
        for index, character in enumerate(text):
            stop = self._feed(character)
            if stop is not None:
                self._matched = stop
                shown = self._held + text[: index + 1]
                self._held = ""
                return shown if self._include else shown[: len(shown) - len(stop)]
        window = self._held + text
        keep = max(pattern.matched for pattern in self._patterns)
        self._held = window[len(window) - keep :]
        return window[: len(window) - keep]

    def flush(self) -> str:
        """End of the stream: return the text still held back as the possible start of a stop string."""
        held, self._held = self._held, ""
        return held

    def _feed(self, character: str) -> str | None:
        found = None
        for pattern in self._patterns:  # longest first
            if pattern.feed(character) and found is None:
                found = pattern.text
        return found
