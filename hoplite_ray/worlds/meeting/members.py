"""The members of a world and the record of rank 0: what members exchange to meet."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from hoplite_ray.errors import WorldError
from hoplite_ray.worlds.gpu.ability import Ability
from hoplite_ray.worlds.handshake.errors import RefusedError
from hoplite_ray.worlds.handshake.frames import field


@lru_cache(1024)
def _checked(address: str) -> str:
    return str(ipaddress.ip_address(address))


@dataclass(frozen=True, slots=True)
class Member:
    """The process of one member.

    uuid:       of its manager.
    addresses:  where it listens, by TCP.
    machine:    of the boot of its machine: equal for two processes of one machine.
    """

    rank: int
    uuid: str
    addresses: tuple[tuple[str, int], ...]
    machine: str
    ability: Ability

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> Member:
        """Read a member of a frame. Raises RefusedError for a value that is none."""
        addresses = field(fields, "addresses", list)
        try:
            reached = tuple((_checked(at), int(port)) for at, port in addresses)
        except (TypeError, ValueError, OverflowError) as error:
            raise RefusedError("nonsense", "a member without addresses") from error
        return cls(
            field(fields, "rank", int),
            field(fields, "uuid", str),
            reached,
            field(fields, "machine", str),
            Ability.parse(field(fields, "ability", dict)),
        )

    def fields(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        return {
            "rank": self.rank,
            "uuid": self.uuid,
            "addresses": self.addresses,
            "machine": self.machine,
            "ability": {
                "code": self.ability.code,
                "lacks": self.ability.lacks,
                "is_needed": self.ability.is_needed,
            },
        }


@dataclass(frozen=True, slots=True)
class Record:
    """The record that rank 0 publishes: an incarnation, its members' secret, and rank 0 itself."""

    name: str
    epoch: int
    incarnation: str
    token: bytes
    leader: Member

    def encode(self) -> bytes:
        """Return it as a rendezvous keeps it."""
        return json.dumps(
            {
                "name": self.name,
                "epoch": self.epoch,
                "life": self.incarnation,
                "token": self.token.hex(),
                "leader": self.leader.fields(),
            }
        ).encode()

    @classmethod
    def parse(cls, value: bytes) -> Record:
        """Read a record. Raises WorldError for bytes that are none."""
        try:
            fields = json.loads(value)
            return cls(
                field(fields, "name", str),
                field(fields, "epoch", int),
                field(fields, "life", str),
                bytes.fromhex(field(fields, "token", str)),
                Member.parse(field(fields, "leader", dict)),
            )
        except (ValueError, TypeError, AttributeError, RefusedError) as error:
            raise WorldError(
                f"the rendezvous has {value[:60]!r} where a world's record should be ({error}); "
                "use another key or another rendezvous"
            ) from error


def machine_id() -> str:
    """Return the name of this machine's boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
