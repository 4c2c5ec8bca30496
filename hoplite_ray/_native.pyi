"""The native core: convert, release the GIL, call, map the error."""

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import Buffer


INLINE_BYTES_MAX: int = 65536

RAILS_MAX: int = 8

REDUCE_SOURCES_MAX: int = 4096

VERSION_BYTES_MAX: int = 4096

COPIES_MAX: int = 3

WIRE_VERSION: int = 5

def error_classes() -> list[str]:
    """Return the exception class of each Code."""

def option_ranges() -> dict[str, tuple[int, int]]:
    """
    Return the least and the largest value of each option that NativeNode takes.
    """

def handles() -> int:
    """
    Return how many objects of these classes there are, and calls that go on in other threads.
    """

def begin_end() -> None:
    """
    Say that the process ends: what daemon threads still do is refused, or kept short.
    """

def ignore_leaks() -> None:
    """Say nothing of handles that are left at the process's end."""

def fold(op: int, dtype: int, first: bool, into: bytearray, data: Buffer) -> None:
    """
    Fold the elements of one source into accumulators: float32 for 16-bit floats. The first source starts them.
    """

def finish(op: int, dtype: int, sources: int, accumulators: bytearray) -> bytearray:
    """
    Return the elements of accumulators that hold so many sources; they may be the same bytearray.
    """

class Delta:
    """A delta; a buffer of its bytes."""

def find_delta(base: Buffer, data: Sequence[Buffer], ranges: Sequence[tuple[int, int]], *, limit_bytes: int, target: Buffer | None = None) -> Delta | None:
    """
    Compare `data`, one buffer after the other, with `base`, and copy it to `target`. `ranges`: bytes, and bytes of an element. Returns None if the delta is above the limit.
    """

def apply_deltas(deltas: Sequence[Buffer], base: Buffer, target: Buffer) -> None:
    """
    Rebuild into `target` from `base`, which may be `target`, and deltas, the oldest first.
    """

def describe_delta(delta: Buffer) -> dict[str, int]:
    """
    Return size_bytes, changed (elements), base_crc and new_crc (CRC-32C) of a delta.
    """

class NativeNode:
    """One node: owns the reactor thread and the arena."""

    def __init__(self, *, node_id: int, incarnation: int, socket_path: str, listen: Sequence[str], arena_bytes: int, secret: bytes, options: Mapping[str, int], spill_directory: str = '', tls: tuple[str, str, str] = ('', '', '')) -> None: ...

    def start(self) -> None:
        """Open sockets and arena and start the reactor thread."""

    def rails(self) -> list[str]:
        """Return the addresses of the rails."""

    def set_view(self, epoch: int, members: Sequence[tuple[int, int, Sequence[str]]]) -> None:
        """
        Tell the node its members: (node id, incarnation, rails), oldest first.
        """

    def next_event(self, timeout_s: float) -> tuple[str, int, int] | None:
        """
        Wait for the next event, ("peer_dead" or "drained", node id, incarnation), or None.
        """

    def stats(self) -> dict[str, int]:
        """Return the published counters by name."""

    def drain(self) -> None:
        """
        Hand over what only this node keeps; ("drained", node id, incarnation) follows.
        """

    def objects(self, limit: int = 1000, object_ids: Sequence[bytes] = ()) -> list[dict[str, Any]]:
        """Return what is here, the largest first; or what of these objects is."""

    def transfers(self, limit: int = 1000) -> list[dict[str, Any]]:
        """Return what comes in, stripe by stripe, the largest first."""

    def channels(self, after: bytes) -> list[dict[str, Any]]:
        """
        Return a page of the live version channels, those after that id, with their readers here.
        """

    def moments(self, object_id: bytes, digits: int) -> dict[str, Any]:
        """
        Return what the node remembers of objects whose ids begin with so many hex digits, and of the deaths of nodes.
        """

    def stop(self) -> None:
        """Say goodbye to all peers and join the thread. Idempotent."""

class Fetched:
    """A received object; a writable buffer that is private to this process."""

    @property
    def layout(self) -> bytes: ...

    @property
    def incarnation(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def block_bytes(self) -> int: ...

    @property
    def is_mapped(self) -> bool: ...

    @property
    def ready_bytes(self) -> int: ...

    @property
    def place(self) -> int: ...

class Request:
    """One pending operation of a client."""

    def wait(self, timeout_s: float) -> bool:
        """Wait; True when the request is finished, either way."""

    def result(self) -> None | Fetched | list[Any] | tuple[Any, ...]:
        """Return how it ended, or raise. A Fetched can be taken once."""

    def cancel(self) -> None:
        """Give blocks, waits and an unwritten range back."""

    @property
    def id(self) -> int:
        """Its number among the client's requests; write() begins another one."""

class Unsealed:
    """
    The range of a reserved object; a writable buffer, and shared with the node until it is sealed. Dropped unsealed, the put is cancelled.
    """

    def seal(self) -> Request:
        """
        Let all clients get the object: the request ends when they may. What is written from now on stays in this process.
        """

    def report(self, upto_bytes: int) -> None:
        """Let the other nodes have the first bytes, which stay as they are."""

    @property
    def size_bytes(self) -> int: ...

class Client:
    """This process's attachment to its own node."""

    def __init__(self, socket_path: str) -> None: ...

    def put(self, object_id: bytes, incarnation: int, layout: bytes, parts: Sequence[tuple[int, int]], data: Sequence[Buffer]) -> Request:
        """
        Put an object of (dtype, bytes) parts, whose bytes are those of `data` one after the other; above INLINE_BYTES_MAX the request ends when write() may be called.
        """

    def write(self, request: Request, data: Sequence[Buffer]) -> None:
        """
        Write a reserved object; `request` then ends when it is sealed. Answers signals; if their handler raises, the put is cancelled.
        """

    def reserve(self, object_id: bytes, incarnation: int, layout: bytes, parts: Sequence[tuple[int, int]], size_bytes: int) -> Request:
        """
        Reserve the range of a large object; the request ends when map() may be called.
        """

    def map(self, request: Request) -> Unsealed:
        """Map the range that was reserved, to write into it."""

    def get(self, object_id: bytes, exists: bool = False, upto_bytes: int | None = None) -> Request:
        """
        Get an object, which need not exist yet unless the caller knows that it `exists`. With `upto_bytes` it ends when as many leading bytes are here.
        """

    def rebuild(self, object_id: bytes, *, incarnation: int, layout: bytes, parts: Sequence[tuple[int, int]], block_bytes: int, crc32c: int, base: tuple[bytes, int], deltas: Sequence[tuple[bytes, int]]) -> Request:
        """
        Get an object that was put. A node that has all of the base makes it of the base and the deltas, the oldest first; any other node fetches it whole. Base and deltas are (object id, incarnation).
        """

    def excerpt(self, object_id: bytes, *, source: tuple[bytes, int], layout: bytes, parts: Sequence[tuple[int, int]], runs: Sequence[tuple[int, int, int, int, int]], exists: bool = False) -> Request:
        """
        Get an object that is made of runs of `source`, (object id, incarnation), by a node that has it. A run is offset in the object, offset in the source, bytes, bytes from one to the next in the source, and their number. Without runs: ask what the source is.
        """

    def gather(self, object_ids: Sequence[bytes], exist: bool = False) -> list[Request]:
        """Get several objects; the node is asked for all of them at once."""

    def wait_all(self, requests: Sequence[Request], timeout_s: float) -> int | None:
        """
        Wait until all have finished (their number), or one has failed (its place among them); None after the timeout.
        """

    def delete(self, object_id: bytes, upto: int = 0) -> Request:
        """
        Delete an object everywhere; with `upto`, its incarnations up to that one.
        """

    def orphan(self, object_id: bytes, upto: int = 0) -> Request:
        """
        Say that an object's owner has died: it may be read until its memory is needed.
        """

    def keep(self, object_id: bytes, incarnation: int, copies: int) -> Request:
        """
        Have several nodes keep an object that was put here, until it is deleted.
        """

    def echo(self) -> Request:
        """Ask for an answer that comes behind those that the node can give now."""

    def reduce(self, target: bytes, *, op: int, source_count: int, count: int, everywhere: bool = False, deterministic: bool = False, share: tuple[int, int, int, bytes, Sequence[tuple[int, int]]] | None = None) -> Request:
        """
        Combine the first `count` confirmed sources into `target`; of each its `share` only: bytes of a source, offset in it, the source on whose node it is folded, layout and parts.
        """

    def reduce_source(self, target: bytes, index: int, object_id: bytes, incarnation: int = 0, confirmed: bool = True) -> None:
        """
        Confirm a source, in the order of arrival; or let the node do so once it is there.
        """

    def reduce_source_failed(self, target: bytes, index: int) -> None:
        """Say that a source will never come."""

    def take_term(self, channel: bytes) -> Request:
        """
        Take the newest term of a channel, which ends all older ones: (term, number of the newest version).
        """

    def publish(self, channel: bytes, number: tuple[int, int, int], payload: bytes, is_end: bool = False) -> Request:
        """Publish a version; the request ends once it is visible."""

    def watch_channel(self, channel: bytes, newer_than: tuple[int, int, int] = (0, 0, 0), wait: bool = True) -> Request:
        """
        Wait for a newer version, (number, is_end, payload); without `wait` ask the home.
        """

    def list_channels(self, after: bytes) -> Request:
        """List a page of live channels."""

    def note_read(self, channel: bytes, number: tuple[int, int, int], process: int, version: int, ordinal: int, time_us: int) -> None:
        """Tell the node what this process has read last."""

    def watch(self, request: Request) -> None:
        """Let next_finished() tell when the request has finished."""

    def next_finished(self, timeout_s: float) -> int | None:
        """
        Wait for any watched request; its id, or None after the timeout. Raises NodeLostError once the client is closed or its node gone, and every id has been told.
        """

    def close(self) -> None:
        """Detach; pending requests end. Idempotent."""

    @property
    def node_id(self) -> int: ...

    @property
    def node_incarnation(self) -> int: ...

    @property
    def is_alive(self) -> bool: ...

WORLD_MEMORY_BYTES: int = 4202496

class TlsEnd:
    """
    One end of TLS over a connection; once it is open an edge or a watch may take it over.
    """

    def receive(self, fd: int, size_bytes: int) -> bytes:
        """
        Greet as far as that goes, and return at most so many bytes; none: nothing now.
        """

    def send(self, fd: int, data: bytes) -> int:
        """Return how many bytes were taken; some of them may be unsent."""

    def flush(self, fd: int) -> None:
        """Send what is unsent, as far as that goes."""

    @property
    def is_open(self) -> bool:
        """Whether the greeting is over."""

    @property
    def has_unsent(self) -> bool: ...

    @property
    def binding(self) -> bytes:
        """32 bytes that both ends of this session have, and no other session."""

class TlsContext:
    """What sessions of TLS begin with: the texts of PEM."""

    def __init__(self, certificate: str, key: str, authority: str) -> None: ...

    def begin(self, *, dials: bool) -> TlsEnd: ...

class Received:
    """What a member sent; a writable buffer."""

    @property
    def dtype(self) -> str: ...

    @property
    def is_notice(self) -> bool: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

class Completions:
    """Where an event loop hears of what has ended."""

    def __init__(self) -> None: ...

    @property
    def fd(self) -> int: ...

    def take(self) -> list[int]:
        """Return the tokens of all operations that have ended since."""

    def push(self, token: int) -> None:
        """Have a token come out, for what has ended elsewhere."""

class WorldOperation:
    """
    One send, receive or leave under way. Dropping it cancels it; its buffer is the caller's again when its state is not 0.
    """

    @property
    def state(self) -> int:
        """0 pending, 1 done, 2 broken, 3 cancelled."""

    def wait(self, timeout_s: float) -> bool:
        """Wait; True when it has ended, either way."""

    def received(self) -> Received | None:
        """What a receive_new has brought, once it is done."""

    def cancel(self) -> bool:
        """Take it back; False: it had ended before."""

    @property
    def has_moved(self) -> bool:
        """Whether any of its bytes have."""

    def notify(self, completions: Completions, token: int) -> bool:
        """
        Have the token come out there when it ends; False: it has ended already.
        """

class FakeWire:
    """What is between two members of one process, for tests."""

    def __init__(self) -> None: ...

    def hold(self) -> None:
        """From now on, what is written waits."""

    def release(self) -> None:
        """Let everything through."""

    def deliver(self, *, to_first: bool, size_bytes: int) -> int:
        """Let so many bytes through to one end; returns how many there were."""

    def end(self, *, at_first: bool, cause: int) -> None:
        """
        One end finds that the other has died (1), is cut off (2) or frozen (3).
        """

class WorldEdges:
    """One world: this member's edges to the others."""

    def send(self, rank: int, key: int, operation: int, dtype: str, shape: Sequence[int], data: object, *, is_notice: bool = False) -> WorldOperation | None:
        """Send a buffer, or in one a notice of where it lies. None: it is done."""

    def receive(self, rank: int, key: int, operation: int, dtype: str, into: object) -> WorldOperation | None:
        """Receive into a buffer; a notice comes beside it. None: it is done."""

    def receive_new(self, rank: int, key: int, operation: int) -> WorldOperation:
        """Receive what comes, into memory of its own."""

    def add_edge(self, rank: int, watch: int, fd: int, *, memory: int = -1, is_first: bool = False, tls: TlsEnd | None = None) -> None:
        """
        Take over a connection to a member, with its TLS, and memory that both share, if there is any.
        """

    def add_fake_edge(self, rank: int, wire: FakeWire, *, is_first: bool) -> None:
        """
        Reach a member of this process by a wire whose faults are decided elsewhere.
        """

    def abort(self, cause: int, text: str) -> None:
        """Break it at once; the others hear of it."""

    def leave(self) -> WorldOperation:
        """
        Say Goodbye after all that is to be sent; done when it has reached the others.
        """

    def end(self) -> tuple[int, int, str] | None:
        """Return (cause, rank, text) once it is broken."""

    def transport(self, rank: int) -> str: ...

    def close(self) -> None:
        """
        Give all descriptors and memory back; what is pending is broken. Idempotent.
        """

    @property
    def number(self) -> int: ...

    @property
    def is_seen_off(self) -> bool:
        """After leave or an end: whether all have our last word, or are gone."""

    @property
    def has_left(self) -> list[int]: ...

class WorldPort:
    """
    All worlds of this process: one thread that moves their bytes, one that sees processes die. For any thread.
    """

    def __init__(self, *, suspect_s: float, dead_s: float, cut_s: float) -> None: ...

    def watch(self, fd: int, *, tls: TlsEnd | None = None) -> int:
        """Take over a connection whose other end is watched as well; its number."""

    def forget(self, watch: int) -> None:
        """Say Goodbye on it and close it."""

    def open_world(self, name: str, epoch: int, rank: int, size: int) -> WorldEdges: ...

    @property
    def events_fd(self) -> int: ...

    def take_events(self) -> list[tuple[int, int, int, int, int, str, int]]:
        """
        Return (kind, world, watch, rank, cause, text, monotonic_ns) of each event.
        """

    def close(self) -> None:
        """Close all worlds and end the threads. Idempotent."""

class Nccl:
    """NCCL and the CUDA driver, as this process has loaded them."""

    def __init__(self, nccl: Sequence[str], cuda: str, *, begin: bool) -> None:
        """
        Load the first of `nccl` that can be; without begin, only if the process uses CUDA.
        """

    @property
    def code(self) -> int:
        """What NCCL says that it is: 23007 is 2.30.7."""

    def device(self, *, begin: bool) -> int:
        """
        Return the GPU that this thread uses, or this process; with begin, else the first.
        """

    def device_of(self, address: int) -> int:
        """Return the GPU of the memory at an address."""

    def unique_id(self) -> bytes:
        """Make what the members of one communicator meet by."""

    def open(self, edges: WorldEdges, id: bytes, *, rank: int, size: int, device: int) -> NcclBond:
        """
        Begin to meet the other members of a communicator, which ends with the world.
        """

    def settle(self) -> bool:
        """
        Wait until all communicators of worlds that are over are; False: one can't be ended.
        """

class NcclBond:
    """One communicator: what carries arrays on GPUs."""

    def joined(self) -> WorldOperation:
        """Done when all members have come; broken: `error` says why."""

    def issue(self, *, kind: int, peer: int, dtype: int, op: int, count: int, part_bytes: int, sources: Sequence[int], targets: Sequence[int], after: int | None, turn: int | None) -> tuple[WorldOperation, int]:
        """
        Issue what all its members have agreed on; returns it, and its turn among all.
        """

    @property
    def error(self) -> str: ...

    @property
    def is_leaked(self) -> bool:
        """
        Whether it could not be aborted, so that something may write to its arrays for ever.
        """
