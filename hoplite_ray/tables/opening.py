"""How a process gets the state of a table to begin with: the newest stored one, or the first."""

from __future__ import annotations

from enum import Enum, auto

from hoplite_ray.errors import ControlError, VersionDroppedError
from hoplite_ray.tables.calls import AddSlot, Answer, Call, ListStates, ReadSlots, ReadState
from hoplite_ray.tables.log import Options, decode_options, encode_options, mark
from hoplite_ray.tables.state import State


class Step(Enum):
    """The call that is under way, or comes next."""

    LISTING = auto()  # the states; the newest one is loaded
    LOADING = auto()  # that state
    FOUNDING = auto()  # there is none: write slot 0, unless it is there
    READING = auto()  # slot 0
    CONFIRMING = auto()  # list states again: with none, READING has read the first slot 0
    DONE = auto()


class Opening:
    """Finds `state`. Pure; `poll_call` returns its calls one by one until the state is there.

    A process that founds a table may do so much later than it has seen that there is no state. Its
    slot 0 may then be one that was removed, which CONFIRMING finds out:

    first: lists no states | others: 600 records, two states, slot 0 removed | first: writes slot 0

    Its tries write different bytes. One that is executed late, in a slot 0 that was removed, would
    otherwise be taken for the slot 0 that this process knows.
    """

    def __init__(
        self,
        table: str,
        options: Options,
        founder: str,
        *,
        above: int | None = None,
        upto: int | None = None,
    ) -> None:
        """Begin. The newest state is taken, or the newest one that is not after slot `upto`.

        With `above` the table is known to have a state of a slot above it.
        """
        self.state: State | None = None
        self._table = table
        self._options = options
        self._founder = founder
        self._above = above
        self._upto = upto
        self._step = Step.LISTING
        self._newest = 0
        self._first = b""
        self._tries = 0  # of writing slot 0

    def poll_call(self) -> Call:
        """Return the call to make. REQUIRES: there is no state yet."""
        match self._step:
            case Step.LISTING | Step.CONFIRMING:
                return ListStates()
            case Step.LOADING:
                return ReadState(self._newest)
            case Step.FOUNDING:
                return AddSlot(0, encode_options(self._options, f"{self._founder}.{self._tries}"))
            case Step.READING:
                return ReadSlots(0, 1)
            case Step.DONE:
                raise AssertionError("the state is there")

    def handle_answer(self, answer: Answer) -> None:
        """Take the answer of the call.

        Raises: ControlError if the table is damaged or gone; VersionDroppedError if no process can
                read the log from slot `upto` on any more.
        """
        match self._step:
            case Step.LISTING | Step.CONFIRMING:
                assert isinstance(answer, list)
                self._choose([each for each in answer if isinstance(each, int)])
            case Step.LOADING:
                self._step = Step.LISTING  # for a state that newer ones have superseded
                if isinstance(answer, bytes):
                    where = f"state {self._newest} of table {self._table!r}"
                    self.state, self._step = State.decode(answer, where), Step.DONE
            case Step.FOUNDING:
                self._step = Step.READING
            case Step.READING:
                self._step = Step.LISTING  # for a slot that was removed: there are states
                if isinstance(answer, list) and isinstance(answer[0], bytes):
                    self._first, self._step = answer[0], Step.CONFIRMING
            case Step.DONE:
                raise AssertionError("no call is under way")

    def handle_failure(self) -> None:
        """Begin again, because it is unknown what the call did."""
        self._step = Step.LISTING

    def _choose(self, states: list[int]) -> None:
        """Take the next step by the list of stored states."""
        if self._above is not None and (not states or states[-1] <= self._above):
            raise self._lost_error()
        # The log may be gone after older ones: a compaction removes slots before states.
        fit = [each for each in states[-2:] if self._upto is None or each <= self._upto]
        if fit:
            self._newest, self._step = fit[-1], Step.LOADING
        elif len(states) > 1:
            raise VersionDroppedError(
                f"the log of table {self._table!r} has been shortened beyond slot {self._upto}: a "
                "watch can't begin there; watch from now on, or with on_gap='latest'"
            )
        elif self._step is Step.CONFIRMING:  # nothing had been removed when slot 0 was read
            options = decode_options(self._first, f"slot 0 of table {self._table!r}")
            self.state, self._step = State(options, mark(self._first)), Step.DONE
        elif states:
            self._step = Step.READING
        else:
            self._tries += 1
            self._step = Step.FOUNDING

    def _lost_error(self) -> ControlError:
        return ControlError(
            f"table {self._table!r} has lost slot {self._above} of its log: its keys were removed "
            "from Ray's key-value store, or Ray's GCS has restarted without what it had; open "
            "the table in a new process, and put its values again"
        )
