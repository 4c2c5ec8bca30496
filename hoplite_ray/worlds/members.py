"""Who is in a world and how it is reached: what members tell each other to meet."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from hoplite_ray.errors import WorldError
from hoplite_ray.worlds.introductions import RefusedError, field


@dataclass(frozen=True, slots=True)
class Ability:
    """What a member has for arrays on GPUs: the code of NCCL's release, or why it has none."""

    code: int
    lacks: str
    is_needed: bool

    @classmethod
    def parsed(cls, fields: dict[str, Any]) -> Ability:
        """Raises RefusedError for what is none."""
        return cls(
            field(fields, "code", int),
            field(fields, "lacks", str),
            field(fields, "is_needed", bool),
        )


@lru_cache(1024)
def _checked(address: str) -> str:
    return str(ipaddress.ip_address(address))


@dataclass(frozen=True, slots=True)
class Member:
    """One member's process: `uuid` is of its manager, `machine` of its kernel's present life."""

    rank: int
    uuid: str
    addresses: tuple[tuple[str, int], ...]
    machine: str
    ability: Ability

    @classmethod
    def parsed(cls, fields: dict[str, Any]) -> Member:
        """Raises RefusedError for what is none."""
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
            Ability.parsed(field(fields, "ability", dict)),
        )

    def fields(self) -> dict[str, Any]:
        """As JSON takes it."""
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
    """What rank 0 publishes: one life of a world, the secret of its members, and where it is."""

    name: str
    epoch: int
    life: str
    token: bytes
    leader: Member

    def encode(self) -> bytes:
        """As a rendezvous keeps it."""
        return json.dumps(
            {
                "name": self.name,
                "epoch": self.epoch,
                "life": self.life,
                "token": self.token.hex(),
                "leader": self.leader.fields(),
            }
        ).encode()

    @classmethod
    def parsed(cls, value: bytes) -> Record:
        """Raises WorldError for what is none."""
        try:
            fields = json.loads(value)
            return cls(
                field(fields, "name", str),
                field(fields, "epoch", int),
                field(fields, "life", str),
                bytes.fromhex(field(fields, "token", str)),
                Member.parsed(field(fields, "leader", dict)),
            )
        except (ValueError, TypeError, AttributeError, RefusedError) as error:
            raise WorldError(
                f"the rendezvous has {value[:60]!r} where a world's record should be ({error}); "
                "use another key or another rendezvous"
            ) from error


def machine_id() -> str:
    """Name this machine, from one boot to the next."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
