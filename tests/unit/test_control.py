"""Views, proofs and view stores: values and rules, no network."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from grpc_tools import protoc
from hypothesis import given
from hypothesis import strategies as st

from hoplite_ray.control import auth, control_pb2
from hoplite_ray.control import control_pb2 as pb
from hoplite_ray.control.auth import (
    UNKNOWN_CLOCK,
    StaleProofError,
    Verifier,
    make_proof,
    read_challenge,
)
from hoplite_ray.control.client import NoQuorumError
from hoplite_ray.control.methods import METHODS, SERVICE
from hoplite_ray.control.view import (
    MEMBERS_MAX,
    Member,
    View,
    member_from_proto,
    member_to_proto,
)
from hoplite_ray.control.views.view_store import TableViews
from hoplite_ray.control.voting import Ballot, Vote, VoteRequest
from hoplite_ray.errors import ControlError, UnauthenticatedError

SECRET = b"0123456789abcdef"


def member(node_id: int, incarnation: int = 1, port: int = 1) -> Member:
    return Member(node_id, incarnation, f"10.0.0.{node_id}:{port}", (f"10.0.0.{node_id}:7",))


addresses = st.builds(
    "{}:{}".format,
    st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6).map("[{}]".format)),
    st.integers(1, 65535),
)
members = st.builds(
    Member,
    st.integers(1, 2**64 - 1),
    st.integers(1, 2**32 - 1),
    addresses,
    st.lists(addresses, min_size=1, max_size=8).map(tuple),
)
views = st.builds(
    View,
    st.integers(0, 2**62 - 1),
    st.lists(members, max_size=5, unique_by=lambda member: member.node_id).map(tuple),
)


@given(views)
def test_a_view_survives_its_bytes(view: View) -> None:
    assert View.from_bytes(view.to_bytes()) == view


def test_bytes_that_are_no_view_are_refused() -> None:
    with pytest.raises(ControlError, match="3 bytes that are no view"):
        View.from_bytes(b"\xff\xff\xff")


NO_MEMBER = {
    "no id": ({"node_id": 0}, "takes an id"),
    "no incarnation": ({"incarnation": 0}, "takes an id and an incarnation from 1 up"),
    "no rail": ({"rails": []}, "with 0 rails is no member"),
    "nine rails": ({"rails": ["10.0.0.1:7"] * 9}, "with 9 rails is no member"),
    "no port": ({"control": "10.0.0.1"}, "gives '10.0.0.1' as an address"),
    "port 0": ({"rails": ["10.0.0.1:0"]}, "gives '10.0.0.1:0' as an address"),
    "port too large": ({"rails": ["10.0.0.1:65536"]}, "takes ADDRESS:PORT"),
    "another scheme": ({"control": "unix:/run/socket"}, "takes ADDRESS:PORT"),
    "very long": ({"control": "a" * 4096 + ":1"}, "takes ADDRESS:PORT"),
}


@pytest.mark.parametrize(("wrong", "reason"), NO_MEMBER.values(), ids=NO_MEMBER.keys())
def test_what_another_process_gives_as_a_member_is_checked(
    wrong: dict[str, object], reason: str
) -> None:
    right = {"node_id": 1, "incarnation": 1, "control": "10.0.0.1:5", "rails": ["10.0.0.1:7"]}
    assert member_from_proto(control_pb2.Member(**right)).rails == ("10.0.0.1:7",)
    encrypted = member_from_proto(control_pb2.Member(**right, data_tls=True))
    assert encrypted.data_tls and member_to_proto(encrypted).data_tls
    with pytest.raises(ControlError, match=reason):
        member_from_proto(control_pb2.Member(**{**right, **wrong}))


def test_a_view_names_each_node_once_and_has_a_largest_size() -> None:
    twice = View(7, (member(1), member(1, incarnation=2)))
    with pytest.raises(ControlError, match="view 7 of 2 members names one twice"):
        View.from_proto(twice.to_proto())
    full = View(7, tuple(member(node_id) for node_id in range(1, MEMBERS_MAX + 1)))
    assert View.from_proto(full.to_proto()) == full
    with pytest.raises(ControlError, match="the view has 1024 members, which is the most"):
        full.with_member(member(MEMBERS_MAX + 1))
    replaced = full.with_member(member(5, incarnation=2))
    assert len(replaced.members) == MEMBERS_MAX


def test_a_joiner_is_the_newest_member() -> None:
    assert View(1, (member(1),)).with_member(member(2)).members == (member(1), member(2))


def test_joining_twice_changes_nothing() -> None:
    view = View(3, (member(1), member(2)))
    assert view.with_member(member(1)) is view


def test_a_next_life_replaces_the_earlier_and_is_the_newest() -> None:
    view = View(3, (member(1), member(2))).with_member(member(1, incarnation=2))
    assert view.members == (member(2), member(1, incarnation=2))


@pytest.mark.parametrize("joiner", [member(1, incarnation=3), member(1, incarnation=4, port=9)])
def test_a_life_that_is_over_or_anothers_cannot_join(joiner: Member) -> None:
    view = View(3, (member(1, incarnation=4),))
    with pytest.raises(ControlError, match="start it with incarnation 5 or another node id"):
        view.with_member(joiner)


def test_only_that_life_of_a_node_is_removed() -> None:
    view = View(3, (member(1), member(2, incarnation=2)))
    assert view.without((2, 1)) == view
    assert view.without((2, 2), (1, 1)).members == ()


class MemoryTable:
    """What Ray's table does, and its end."""

    def __init__(self) -> None:
        self.stored = (0, b"")
        self.is_gone = False

    def read(self) -> tuple[int, bytes]:
        if self.is_gone:
            raise ControlError("the table does not answer")
        return self.stored

    def compare_and_set(self, epoch: int, value: bytes) -> bool:
        if epoch <= self.read()[0]:
            return False
        self.stored = (epoch, value)
        return True


def test_a_table_decides_for_the_first_who_asks() -> None:
    async def walk() -> None:
        table = MemoryTable()
        one, other = TableViews(table), TableViews(table)
        first, late = View(1, (member(1),)), View(1, (member(2),))
        assert await one.read(View()) == View()
        assert await one.commit(View(), first) == first
        assert await other.commit(View(), late) == first
        second = View(2, (member(1), member(2)))
        assert await other.commit(first, second) == second
        assert await one.commit(first, View(2, ())) == second
        table.is_gone = True
        with pytest.raises(NoQuorumError, match="does not answer"):
            await one.read(second)
        with pytest.raises(NoQuorumError, match="does not answer"):
            await one.commit(second, View(3, ()))

    asyncio.run(walk())


ballots = st.builds(Ballot, st.integers(0, 2**62 - 1), st.integers(0, 2**64 - 1))


@given(
    base=views.filter(lambda view: view.epoch < 2**62 - 1), ballot=ballots, proposes=st.booleans()
)
def test_a_request_for_a_vote_survives_the_way(base: View, ballot: Ballot, proposes: bool) -> None:
    proposal = View(base.epoch + 1, base.members) if proposes else None
    request = VoteRequest(base, ballot, proposal)
    message = pb.VoteRequest.FromString(request.to_proto((7, 1)).SerializeToString())
    assert VoteRequest.from_proto(message) == request


@given(
    vote=st.builds(
        Vote,
        granted=st.booleans(),
        promised=ballots,
        accepted=st.none() | st.tuples(ballots, views),
        newer=st.none() | views,
        why=st.text(st.characters(codec="utf-8"), max_size=20),
    )
)
def test_a_vote_survives_the_way(vote: Vote) -> None:
    message = pb.VoteReply.FromString(vote.to_proto((7, 1)).SerializeToString())
    assert Vote.from_proto(message) == vote


def test_what_is_no_request_for_a_vote_is_refused() -> None:
    base = View(3, (member(1),))
    skipping = VoteRequest(base, Ballot(1, 1), View(5, base.members)).to_proto((1, 1))
    with pytest.raises(ControlError, match="view 5 can't follow view 3"):
        VoteRequest.from_proto(skipping)
    endless = VoteRequest(base, Ballot(2**62, 1)).to_proto((1, 1))
    with pytest.raises(ControlError, match="round 4611686018427387904 of node 1 is none"):
        VoteRequest.from_proto(endless)
    last = VoteRequest(View(2**62, base.members), Ballot(1, 1)).to_proto((1, 1))
    with pytest.raises(ControlError, match="view 4611686018427387904 is none"):
        VoteRequest.from_proto(last)


class Calls:
    """A node and a caller of it, whose monotonic clocks began at different times."""

    AHEAD_S = 86_400.0  # the node's clock, of the caller's

    def __init__(self) -> None:
        self.clock = UNKNOWN_CLOCK
        self.begin(at_s=1000.0)

    def begin(self, *, at_s: float) -> None:
        """Begin a life of the node, when the caller's clock says so."""
        self.verifier = Verifier(SECRET, now_s=at_s + self.AHEAD_S)

    def signed(self, at_s: float, method: str = "Join", request: bytes = b"request") -> str:
        return make_proof(SECRET, method, request, clock=self.clock, now_s=at_s)

    def check(self, given: str | None, *, at_s: float) -> None:
        self.verifier.check("Join", b"request", given, now_s=at_s + self.AHEAD_S)

    def meet(self, at_s: float, *, slept_s: float = 0.0) -> None:
        """Learn the node's moment as a first call does, by a clock that stood for `slept_s`."""
        signed = self.signed(at_s - slept_s)
        with pytest.raises(StaleProofError, match="not signed for this moment of this") as refused:
            self.check(signed, at_s=at_s)
        clock = read_challenge(SECRET, signed, refused.value.challenge, now_s=at_s - slept_s)
        assert clock is not None
        self.clock = clock


@pytest.fixture
def calls() -> Calls:
    calls = Calls()
    calls.meet(1000.0)
    return calls


def test_a_proof_holds_for_its_own_call_once(calls: Calls) -> None:
    signed = calls.signed(1000.0)
    calls.check(signed, at_s=1030.0)
    with pytest.raises(UnauthenticatedError, match="was made before"):
        calls.check(signed, at_s=1031.0)


@pytest.mark.parametrize("slept_s", [61.0, -61.0], ids=["the caller slept", "the node slept"])
def test_a_proof_of_another_moment_is_answered_by_the_nodes_own(
    calls: Calls, slept_s: float
) -> None:
    calls.meet(2000.0, slept_s=slept_s)
    calls.check(calls.signed(2000.0 - slept_s), at_s=2000.0)


def test_a_proof_for_one_life_of_a_node_is_none_for_another(calls: Calls) -> None:
    signed = calls.signed(1000.0)
    calls.begin(at_s=1000.0)
    with pytest.raises(StaleProofError, match="this life of the node"):
        calls.check(signed, at_s=1000.0)
    calls.meet(1001.0)
    calls.check(calls.signed(1001.0), at_s=1001.0)


def test_a_challenge_counts_for_the_call_that_it_answers_only(calls: Calls) -> None:
    calls.begin(at_s=1000.0)
    first, second = calls.signed(1000.0), calls.signed(1000.0)
    with pytest.raises(StaleProofError) as refused:
        calls.check(first, at_s=1000.0)
    challenge = refused.value.challenge
    ahead = challenge.replace(":0.000:", ":3600.000:")  # so that later calls are signed now
    assert ahead != challenge
    assert read_challenge(SECRET, second, challenge, now_s=1000.0) is None
    for told in (ahead, "x:y", "x:1:\u00e9", ""):
        assert read_challenge(SECRET, first, told, now_s=1000.0) is None
    assert read_challenge(b"f" * 16, first, challenge, now_s=1000.0) is None
    assert read_challenge(SECRET, first, challenge, now_s=1000.0) is not None


def test_the_moment_of_a_call_is_never_ahead_of_the_nodes(calls: Calls) -> None:
    """A challenge that is held up can't make calls valid for longer."""
    calls.begin(at_s=1000.0)
    signed = calls.signed(1000.0)
    with pytest.raises(StaleProofError) as refused:
        calls.check(signed, at_s=1000.0)
    held_up = read_challenge(SECRET, signed, refused.value.challenge, now_s=1050.0)
    assert held_up is not None
    calls.clock = held_up
    call = calls.signed(1050.0)
    calls.check(call, at_s=1050.0)
    with pytest.raises(StaleProofError):
        calls.check(call, at_s=1061.0)


REFUSED = {
    "no proof": (None, "no hoplite-proof metadata"),
    "malformed": ("abc", "malformed"),
    "not a time": ("life:x:y:z", "malformed"),
    "no finite time": ("life:nan:y:z", "malformed"),
    "not ascii": ("life:1000.0:00:\u00e9", "malformed"),
    "another secret": (make_proof(b"f" * 16, "Join", b"request", now_s=1000.0), "secret"),
    "another method": (make_proof(SECRET, "Leave", b"request", now_s=1000.0), "secret"),
    "another request": (make_proof(SECRET, "Join", b"other", now_s=1000.0), "secret"),
}


@pytest.mark.parametrize(("given_proof", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_any_other_proof_is_refused_without_a_challenge(
    calls: Calls, given_proof: str | None, reason: str
) -> None:
    with pytest.raises(UnauthenticatedError, match=reason) as refused:
        calls.check(given_proof, at_s=1000.0)
    assert not isinstance(refused.value, StaleProofError)


def test_proofs_are_forgotten_once_their_time_is_over(calls: Calls) -> None:
    for second in range(1000, 2000, 10):
        calls.check(calls.signed(second), at_s=second)
    assert len(calls.verifier._nonces) <= 13  # of two minutes, one in ten seconds


def test_more_calls_than_can_be_remembered_are_refused(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "_NONCES_MAX", 30)
    for _ in range(30):
        calls.check(calls.signed(1000.0), at_s=1000.0)
    with pytest.raises(UnauthenticatedError, match="30 calls came in two minutes"):
        calls.check(calls.signed(1000.0), at_s=1000.0)
    calls.check(calls.signed(1121.0), at_s=1121.0)


def test_the_generated_code_is_that_of_the_proto(tmp_path: Path) -> None:
    proto = Path(control_pb2.__file__).with_name("control.proto")
    root = proto.parents[2]
    arguments = ["", f"-I{root}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", str(proto)]
    assert protoc.main(arguments) == 0
    for name in ("control_pb2.py", "control_pb2.pyi"):
        made = (tmp_path / "hoplite_ray/control" / name).read_text()
        committed = proto.with_name(name).read_text()
        assert made == committed, f"run: python -m grpc_tools.protoc {' '.join(arguments[1:])}"


def test_every_method_of_the_proto_is_in_the_table() -> None:
    service = control_pb2.DESCRIPTOR.services_by_name["Control"]
    assert service.full_name == SERVICE
    assert {method.name for method in service.methods} == set(METHODS)
    for method in service.methods:
        listed = METHODS[method.name]
        assert listed.request.DESCRIPTOR is method.input_type
        assert listed.reply.DESCRIPTOR is method.output_type
        assert listed.streams is method.server_streaming
