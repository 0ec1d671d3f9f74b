"""The waiting queues of the model: classes, users and their service, sequences that are not ready."""

from .model_state import ModelSequence


class WaitingQueue:
    def __init__(self, max_overtakes: int) -> None:
        self.max_overtakes = max_overtakes
        self.sequences: list[ModelSequence] = []  # by (priority, order)
        self.service: dict[
            tuple[int, int], float
        ] = {}  # by (class, user), of those with unfinished sequences
        self.unfinished: list[ModelSequence] = []

    def enter(self, sequence: ModelSequence) -> None:
        """A new sequence of whatever state; what its user starts with."""
        if sequence.share not in self.service:
            present = [
                value for (priority, _), value in self.service.items() if priority == sequence.priority
            ]
            self.service[sequence.share] = min(present, default=0.0)
        self.unfinished.append(sequence)

    def leave(self, sequence: ModelSequence) -> None:
        self.unfinished.remove(sequence)
        if not any(other.share == sequence.share for other in self.unfinished):
            del self.service[sequence.share]

    def charge(self, sequence: ModelSequence, tokens: int) -> None:
        self.service[sequence.share] += tokens / sequence.options.weight

    def charge_prompt(self, sequence: ModelSequence) -> None:
        if not sequence.charged:
            self.charge(sequence, sequence.prompt_len)
            sequence.charged = True

    def put(self, sequence: ModelSequence) -> None:
        self.sequences.append(sequence)
        self.sequences.sort(key=lambda s: s.place)

    def next(self, before_class: int | None) -> ModelSequence | None:
        """Who is to be admitted next, of classes before `before_class` (None: any)."""
        for priority in sorted({s.priority for s in self.sequences}):
            if before_class is not None and priority >= before_class:
                return None
            users = {s.share for s in self.sequences if s.priority == priority}
            candidates = [c for user in users if (c := self._candidate(user)) is not None]
            if candidates:
                return min(candidates, key=lambda c: (self.service[c.share], c.order))
        return None

    def _candidate(self, user: tuple[int, int]) -> ModelSequence | None:
        for sequence in self._of(user):
            if sequence.ready:
                return sequence
            if sequence.overtakes >= self.max_overtakes:
                return None
        return None

    def admit(self, sequence: ModelSequence) -> None:
        self.sequences.remove(sequence)
        for other in self._of(sequence.share):
            if other.order < sequence.order and not other.ready:
                other.overtakes += 1
        self.charge_prompt(sequence)

    def _of(self, user: tuple[int, int]) -> list[ModelSequence]:
        return [s for s in self.sequences if s.share == user]
