"""Every error of the product, as one tree.

::

    HopliteError
    ├── GetTimeoutError          (also TimeoutError)     the caller's own limit ran out
    ├── RequestCancelledError                            the caller cancelled the request
    ├── ObjectLostError                                  all holders are gone, or it was deleted
    ├── StoreFullError                                   the arena can't take it
    ├── DuplicateObjectError                             a second put of a live id with other bytes
    ├── LayoutMismatchError      (also ValueError)       sources of a reduce differ in layout
    ├── ReduceError                                      too few sources are left; has `.fates`
    ├── CollectiveError                                  a member of a group has failed
    ├── InvalidArgumentError     (also ValueError)       the request itself is wrong
    ├── WrongTypeError           (also TypeError)        an argument or a source is of no use
    ├── PeerLostError                                    another node died
    ├── NodeLostError                                    this process's own node is gone
    ├── WireError                                        a peer sent bytes that are no frame
    ├── WireVersionMismatchError                         a peer speaks another wire version
    ├── UnauthenticatedError                             a peer does not know the cluster's secret
    ├── ControlError                                     the control plane could not do it
    ├── VersionDroppedError                              a table keeps that version no longer
    ├── VersionMissingError      (also KeyError)         a table's key has no value then
    ├── VersionRefusedError                              a channel has a newer version or publisher
    ├── WorldError                                       a world could not do it
    │   ├── WorldBrokenError                             it has ended; has `.cause`, `.rank`, ...
    │   ├── WorldTimeoutError    (also TimeoutError)     the caller's own limit ran out
    │   └── StaleEpochError                              a newer epoch of the world is there
    ├── SystemFailureError                               the kernel refused; the text has the errno
    ├── UnusableAfterForkError                           its store or manager is a parent's
    └── of hoplite_ray.serve
        ├── BusyError                                    a stage has no room for another query
        ├── LateError            (also TimeoutError)     a stage did not run it: its deadline
        ├── NoReplicaError                               a stage has no replica now
        ├── PipelineGoneError                            an update has removed its pipeline
        ├── PoisonousQueryError                          replicas died while they held the query
        ├── QuorumError                                  too few members voted; has `.partial`
        ├── UnattainableError    (also ValueError)       no plan keeps the objective
        └── EdgeBrokenError                              the peer of an edge is gone

Texts name the thing, the cause and the next step. All of them survive pickling, with their
attributes, because Ray carries them between processes.
"""

from __future__ import annotations

from collections.abc import Sequence


class HopliteError(Exception):
    """The base of every error that hoplite_ray raises."""


class GetTimeoutError(HopliteError, TimeoutError):
    """The caller's own time limit ran out before the operation finished."""


class RequestCancelledError(HopliteError):
    """The caller cancelled the request."""


class ObjectLostError(HopliteError):
    """Every holder of the object is gone, or the object was deleted."""


class StoreFullError(HopliteError):
    """The arena cannot take the object, and nothing that runs can free memory."""


class DuplicateObjectError(HopliteError):
    """An object with this id is there already, and has other bytes."""


class LayoutMismatchError(HopliteError, ValueError):
    """The sources of a reduce differ in dtype, shape or size."""


class ReduceError(HopliteError):
    """Fewer sources are left than the reduce needs; `fates` tells the fate of each source.

    `lost` has the places of the failed and lost sources in the list of sources, in ascending order.
    It is empty if a get by the id of the result raises the error.
    """

    def __init__(
        self, message: str = "", fates: Sequence[str] = (), lost: Sequence[int] = ()
    ) -> None:
        super().__init__(message, tuple(fates), tuple(lost))
        self.fates = tuple(fates)
        self.lost = tuple(lost)

    def __str__(self) -> str:
        return "\n  ".join([str(self.args[0]), *self.fates])


class CollectiveError(HopliteError):
    """A member of a ray.util.collective group has died or failed, and the group with it."""


class InvalidArgumentError(HopliteError, ValueError):
    """The request itself is wrong."""


class WrongTypeError(HopliteError, TypeError):
    """An argument, or the result of a source, has a type that can't be taken."""


class PeerLostError(HopliteError):
    """Another node died, and no object can be named."""


class NodeLostError(HopliteError):
    """The node that this process was attached to has ended."""


class WireError(HopliteError):
    """A peer sent bytes that are no frame; its connection was closed."""


class WireVersionMismatchError(HopliteError):
    """A peer speaks another version of the wire format."""


class UnauthenticatedError(HopliteError):
    """A peer does not know the cluster's secret."""


class ControlError(HopliteError):
    """The control plane could not do what was asked."""


class VersionDroppedError(HopliteError):
    """A table keeps a version of `key` no longer, or has skipped versions that a watch asks for."""

    def __init__(self, message: str = "", key: str = "") -> None:
        super().__init__(message, key)
        self.key = key

    def __str__(self) -> str:
        return str(self.args[0])


class VersionMissingError(HopliteError, KeyError):
    """A table's `key` has no value: now, at that time, or in that version."""

    def __init__(self, message: str = "", key: str = "") -> None:
        super().__init__(message, key)
        self.key = key

    def __str__(self) -> str:
        return str(self.args[0])


class VersionRefusedError(HopliteError):
    """A channel refuses a version: a newer one is there, or another publisher has the channel.

    `newest` is (epoch, counter, n) of the channel's newest version. `is_taken` is True if a newer
    term was taken, so that no version of the older term can be published any more.
    """

    def __init__(
        self, message: str = "", newest: tuple[int, int, int] = (0, 0, 0), is_taken: bool = False
    ) -> None:
        super().__init__(message, newest, is_taken)
        self.newest = newest
        self.is_taken = is_taken

    def __str__(self) -> str:
        return str(self.args[0])


class WorldError(HopliteError):
    """A world could not be joined, or one of its operations is impossible."""


class WorldBrokenError(WorldError):
    """The world has ended; its operations in flight have failed.

    `cause` is one of PEER_DIED, UNREACHABLE, FROZEN, PEER_LEFT, ABORTED, PROTOCOL and LOCAL. `rank`
    is the member at which the end began. `detected_at_ns` is the moment at which this process heard
    of it, by its monotonic clock. Join the world again with all members: that is its next epoch.
    """

    def __init__(
        self,
        message: str = "",
        world: str = "",
        epoch: int = 0,
        rank: int | None = None,
        cause: str = "",
        detected_at_ns: int = 0,
    ) -> None:
        super().__init__(message, world, epoch, rank, cause, detected_at_ns)
        self.world, self.epoch, self.rank, self.cause = world, epoch, rank, cause
        self.detected_at_ns = detected_at_ns

    def __str__(self) -> str:
        return str(self.args[0])


class WorldTimeoutError(WorldError, TimeoutError):
    """The caller's own time limit ran out before the operation of a world finished."""


class StaleEpochError(WorldError):
    """The epoch of the world is over; its members have to join again."""


class SystemFailureError(HopliteError):
    """The kernel refused; the text names the call and the errno."""


class UnusableAfterForkError(HopliteError):
    """This process was forked from the one that attached the store or made the manager."""
