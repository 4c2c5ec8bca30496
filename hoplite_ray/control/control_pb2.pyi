from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Member(_message.Message):
    __slots__ = ("node_id", "incarnation", "control", "rails", "data_tls")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    RAILS_FIELD_NUMBER: _ClassVar[int]
    DATA_TLS_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    incarnation: int
    control: str
    rails: _containers.RepeatedScalarFieldContainer[str]
    data_tls: bool
    def __init__(self, node_id: _Optional[int] = ..., incarnation: _Optional[int] = ..., control: _Optional[str] = ..., rails: _Optional[_Iterable[str]] = ..., data_tls: _Optional[bool] = ...) -> None: ...

class View(_message.Message):
    __slots__ = ("epoch", "members")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, epoch: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("member", "passed_on")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    PASSED_ON_FIELD_NUMBER: _ClassVar[int]
    member: Member
    passed_on: bool
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., passed_on: _Optional[bool] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("node_id", "incarnation")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    incarnation: int
    def __init__(self, node_id: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("known_epoch",)
    KNOWN_EPOCH_FIELD_NUMBER: _ClassVar[int]
    known_epoch: int
    def __init__(self, known_epoch: _Optional[int] = ...) -> None: ...

class DeathReport(_message.Message):
    __slots__ = ("node_id", "incarnation", "reporter")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REPORTER_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    incarnation: int
    reporter: int
    def __init__(self, node_id: _Optional[int] = ..., incarnation: _Optional[int] = ..., reporter: _Optional[int] = ...) -> None: ...

class ConfirmRequest(_message.Message):
    __slots__ = ("node_id", "incarnation")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    incarnation: int
    def __init__(self, node_id: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class Confirmation(_message.Message):
    __slots__ = ("node_id", "incarnation", "confirmed")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    incarnation: int
    confirmed: bool
    def __init__(self, node_id: _Optional[int] = ..., incarnation: _Optional[int] = ..., confirmed: _Optional[bool] = ...) -> None: ...

class Ballot(_message.Message):
    __slots__ = ("round", "node_id")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    round: int
    node_id: int
    def __init__(self, round: _Optional[int] = ..., node_id: _Optional[int] = ...) -> None: ...

class VoteRequest(_message.Message):
    __slots__ = ("node_id", "incarnation", "base", "ballot", "proposal")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    incarnation: int
    base: View
    ballot: Ballot
    proposal: View
    def __init__(self, node_id: _Optional[int] = ..., incarnation: _Optional[int] = ..., base: _Optional[_Union[View, _Mapping]] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., proposal: _Optional[_Union[View, _Mapping]] = ...) -> None: ...

class VoteReply(_message.Message):
    __slots__ = ("node_id", "incarnation", "granted", "promised", "accepted_ballot", "accepted", "newer", "why")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_BALLOT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    NEWER_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    incarnation: int
    granted: bool
    promised: Ballot
    accepted_ballot: Ballot
    accepted: View
    newer: View
    why: str
    def __init__(self, node_id: _Optional[int] = ..., incarnation: _Optional[int] = ..., granted: _Optional[bool] = ..., promised: _Optional[_Union[Ballot, _Mapping]] = ..., accepted_ballot: _Optional[_Union[Ballot, _Mapping]] = ..., accepted: _Optional[_Union[View, _Mapping]] = ..., newer: _Optional[_Union[View, _Mapping]] = ..., why: _Optional[str] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatsReply(_message.Message):
    __slots__ = ("node_id", "incarnation", "counters")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    incarnation: int
    counters: _containers.ScalarMap[str, int]
    def __init__(self, node_id: _Optional[int] = ..., incarnation: _Optional[int] = ..., counters: _Optional[_Mapping[str, int]] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Description(_message.Message):
    __slots__ = ("node_id", "incarnation", "release", "wire_version", "python", "pid", "directory", "congestion_control", "arena_bytes", "options", "clock_s", "draining", "shortage")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    CONGESTION_CONTROL_FIELD_NUMBER: _ClassVar[int]
    ARENA_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_S_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    SHORTAGE_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    incarnation: int
    release: str
    wire_version: int
    python: str
    pid: int
    directory: str
    congestion_control: str
    arena_bytes: int
    options: _containers.ScalarMap[str, int]
    clock_s: float
    draining: bool
    shortage: str
    def __init__(self, node_id: _Optional[int] = ..., incarnation: _Optional[int] = ..., release: _Optional[str] = ..., wire_version: _Optional[int] = ..., python: _Optional[str] = ..., pid: _Optional[int] = ..., directory: _Optional[str] = ..., congestion_control: _Optional[str] = ..., arena_bytes: _Optional[int] = ..., options: _Optional[_Mapping[str, int]] = ..., clock_s: _Optional[float] = ..., draining: _Optional[bool] = ..., shortage: _Optional[str] = ...) -> None: ...

class ProbeRequest(_message.Message):
    __slots__ = ("timeout_ms",)
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    timeout_ms: int
    def __init__(self, timeout_ms: _Optional[int] = ...) -> None: ...

class Probes(_message.Message):
    __slots__ = ("probes",)
    PROBES_FIELD_NUMBER: _ClassVar[int]
    probes: _containers.RepeatedCompositeFieldContainer[Probe]
    def __init__(self, probes: _Optional[_Iterable[_Union[Probe, _Mapping]]] = ...) -> None: ...

class Probe(_message.Message):
    __slots__ = ("node_id", "incarnation", "control_failure", "rail_failures")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FAILURE_FIELD_NUMBER: _ClassVar[int]
    RAIL_FAILURES_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    incarnation: int
    control_failure: str
    rail_failures: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, node_id: _Optional[int] = ..., incarnation: _Optional[int] = ..., control_failure: _Optional[str] = ..., rail_failures: _Optional[_Iterable[str]] = ...) -> None: ...

class ListObjectsRequest(_message.Message):
    __slots__ = ("limit", "object_ids")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    OBJECT_IDS_FIELD_NUMBER: _ClassVar[int]
    limit: int
    object_ids: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, limit: _Optional[int] = ..., object_ids: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Objects(_message.Message):
    __slots__ = ("objects",)
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedCompositeFieldContainer[Object]
    def __init__(self, objects: _Optional[_Iterable[_Union[Object, _Mapping]]] = ...) -> None: ...

class Object(_message.Message):
    __slots__ = ("object_id", "incarnation", "size_bytes", "state", "pinned", "orphaned", "mappings", "waiters", "sole")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    ORPHANED_FIELD_NUMBER: _ClassVar[int]
    MAPPINGS_FIELD_NUMBER: _ClassVar[int]
    WAITERS_FIELD_NUMBER: _ClassVar[int]
    SOLE_FIELD_NUMBER: _ClassVar[int]
    object_id: bytes
    incarnation: int
    size_bytes: int
    state: str
    pinned: bool
    orphaned: bool
    mappings: int
    waiters: int
    sole: bool
    def __init__(self, object_id: _Optional[bytes] = ..., incarnation: _Optional[int] = ..., size_bytes: _Optional[int] = ..., state: _Optional[str] = ..., pinned: _Optional[bool] = ..., orphaned: _Optional[bool] = ..., mappings: _Optional[int] = ..., waiters: _Optional[int] = ..., sole: _Optional[bool] = ...) -> None: ...

class ListTransfersRequest(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class Transfers(_message.Message):
    __slots__ = ("transfers",)
    TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    transfers: _containers.RepeatedCompositeFieldContainer[Transfer]
    def __init__(self, transfers: _Optional[_Iterable[_Union[Transfer, _Mapping]]] = ...) -> None: ...

class Transfer(_message.Message):
    __slots__ = ("object_id", "target_id", "kind", "sender", "stripe", "stripe_count", "landed_bytes", "size_bytes")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    STRIPE_FIELD_NUMBER: _ClassVar[int]
    STRIPE_COUNT_FIELD_NUMBER: _ClassVar[int]
    LANDED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    object_id: bytes
    target_id: bytes
    kind: str
    sender: int
    stripe: int
    stripe_count: int
    landed_bytes: int
    size_bytes: int
    def __init__(self, object_id: _Optional[bytes] = ..., target_id: _Optional[bytes] = ..., kind: _Optional[str] = ..., sender: _Optional[int] = ..., stripe: _Optional[int] = ..., stripe_count: _Optional[int] = ..., landed_bytes: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class ListChannelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Channels(_message.Message):
    __slots__ = ("channels",)
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    channels: _containers.RepeatedCompositeFieldContainer[Channel]
    def __init__(self, channels: _Optional[_Iterable[_Union[Channel, _Mapping]]] = ...) -> None: ...

class Channel(_message.Message):
    __slots__ = ("channel_id", "epoch", "counter", "n", "record", "is_home", "readers")
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    IS_HOME_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    channel_id: bytes
    epoch: int
    counter: int
    n: int
    record: bytes
    is_home: bool
    readers: _containers.RepeatedCompositeFieldContainer[ChannelReader]
    def __init__(self, channel_id: _Optional[bytes] = ..., epoch: _Optional[int] = ..., counter: _Optional[int] = ..., n: _Optional[int] = ..., record: _Optional[bytes] = ..., is_home: _Optional[bool] = ..., readers: _Optional[_Iterable[_Union[ChannelReader, _Mapping]]] = ...) -> None: ...

class ChannelReader(_message.Message):
    __slots__ = ("process", "version", "ordinal", "time_s")
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    process: int
    version: int
    ordinal: int
    time_s: float
    def __init__(self, process: _Optional[int] = ..., version: _Optional[int] = ..., ordinal: _Optional[int] = ..., time_s: _Optional[float] = ...) -> None: ...

class TraceRequest(_message.Message):
    __slots__ = ("object_id", "digits")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    DIGITS_FIELD_NUMBER: _ClassVar[int]
    object_id: bytes
    digits: int
    def __init__(self, object_id: _Optional[bytes] = ..., digits: _Optional[int] = ...) -> None: ...

class Traced(_message.Message):
    __slots__ = ("moments", "now_ns", "kept_max", "forgotten", "oldest_ns")
    MOMENTS_FIELD_NUMBER: _ClassVar[int]
    NOW_NS_FIELD_NUMBER: _ClassVar[int]
    KEPT_MAX_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    OLDEST_NS_FIELD_NUMBER: _ClassVar[int]
    moments: _containers.RepeatedCompositeFieldContainer[Moment]
    now_ns: int
    kept_max: int
    forgotten: int
    oldest_ns: int
    def __init__(self, moments: _Optional[_Iterable[_Union[Moment, _Mapping]]] = ..., now_ns: _Optional[int] = ..., kept_max: _Optional[int] = ..., forgotten: _Optional[int] = ..., oldest_ns: _Optional[int] = ...) -> None: ...

class Moment(_message.Message):
    __slots__ = ("object_id", "kind", "error", "stripe", "stripe_count", "process", "at_ns", "since_ns", "peer", "other", "size_bytes")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    STRIPE_FIELD_NUMBER: _ClassVar[int]
    STRIPE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    AT_NS_FIELD_NUMBER: _ClassVar[int]
    SINCE_NS_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    OTHER_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    object_id: bytes
    kind: str
    error: str
    stripe: int
    stripe_count: int
    process: int
    at_ns: int
    since_ns: int
    peer: int
    other: int
    size_bytes: int
    def __init__(self, object_id: _Optional[bytes] = ..., kind: _Optional[str] = ..., error: _Optional[str] = ..., stripe: _Optional[int] = ..., stripe_count: _Optional[int] = ..., process: _Optional[int] = ..., at_ns: _Optional[int] = ..., since_ns: _Optional[int] = ..., peer: _Optional[int] = ..., other: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("timeout_ms", "node_id", "incarnation")
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    timeout_ms: int
    node_id: int
    incarnation: int
    def __init__(self, timeout_ms: _Optional[int] = ..., node_id: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class DrainReply(_message.Message):
    __slots__ = ("drained", "sole_copies", "left")
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    SOLE_COPIES_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    drained: bool
    sole_copies: int
    left: _containers.RepeatedCompositeFieldContainer[Object]
    def __init__(self, drained: _Optional[bool] = ..., sole_copies: _Optional[int] = ..., left: _Optional[_Iterable[_Union[Object, _Mapping]]] = ...) -> None: ...
