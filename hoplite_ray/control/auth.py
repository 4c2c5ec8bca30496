"""Proof, on every control call, that the caller knows the cluster's secret (design decision 25).

A proof is an HMAC-SHA256 over the method, the request's bytes, a nonce, the run of the called node
and the moment in that run. So a proof fits one request to one run of one node, once, for a minute.
The caller learns run and moment from the node, which refuses the first call with a challenge; the
caller then signs the call again. Neither end uses a wall clock. The secret itself never travels.
gRPC without TLS hides neither requests nor answers; tls.py hides both if Ray's settings ask for it.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from typing import NamedTuple

from hoplite_ray.errors import UnauthenticatedError

METADATA_KEY = "hoplite-proof"
CHALLENGE_KEY = "hoplite-challenge"  # in the trailing metadata of a call that is to be made again
SECRET_BYTES_MIN = 16  # 128 bits: what HMAC-SHA256 needs to be out of reach of guessing

_VALID_S = 60.0  # a proof is refused when it is older, and its nonce is forgotten after that
_NONCES_MAX = 65536  # of the last two minutes; a busier control plane than this is out of order


class NodeClock(NamedTuple):
    """A caller's knowledge of a node: its run, and how far its clock is ahead of the caller's.

    Both clocks are monotonic and run alike. After a machine has slept, the next call is challenged
    again.
    """

    life: str
    ahead_s: float


UNKNOWN_CLOCK = NodeClock("unknown", 0.0)  # of a node that was never called


def make_proof(
    secret: bytes, method: str, request: bytes, *, clock: NodeClock = UNKNOWN_CLOCK, now_s: float
) -> str:
    """Return the metadata value for one call to the node of `clock`, by the monotonic `now_s`."""
    stamp = f"{clock.life}:{now_s + clock.ahead_s:.3f}:{secrets.token_hex(16)}"
    return f"{stamp}:{_mac(secret, 'control', method.encode(), stamp.encode(), request)}"


def read_challenge(secret: bytes, signed: str, challenge: str, *, now_s: float) -> NodeClock | None:
    """Return what the node's answer to the proof `signed` says; None if it is no such answer.

    A challenge covers the nonce that it answers, so that repeating an older one is of no
    use: a moment that was true once comes later here, and is never ahead of the node's.
    """
    life, _, rest = challenge.partition(":")
    moment, _, mac = rest.partition(":")
    nonce = signed.split(":")[2]
    expected = _mac(secret, "challenge", nonce.encode(), f"{life}:{moment}".encode())
    if not (mac.isascii() and hmac.compare_digest(expected, mac)):
        return None
    return NodeClock(life, float(moment) - now_s)


def _mac(secret: bytes, kind: str, *covered: bytes) -> str:
    text = b"\0".join([b"hoplite-2", kind.encode(), *covered])
    return hmac.new(secret, text, hashlib.sha256).hexdigest()


class StaleProofError(UnauthenticatedError):
    """The caller knows the secret, and not the moment: it may sign again by `challenge`."""

    def __init__(self, message: str, challenge: str) -> None:
        super().__init__(message)
        self.challenge = challenge


class Verifier:
    """Checks proofs, and remembers the nonces of the last two minutes. One event loop owns it."""

    def __init__(self, secret: bytes, *, now_s: float) -> None:
        """`now_s`: of a monotonic clock, as in `check`."""
        self._secret = secret
        self._life = secrets.token_hex(8)
        self._began_s = now_s
        self._nonces: dict[str, float] = {}  # nonce -> when it may be forgotten; oldest first

    def check(self, method: str, request: bytes, given: str | None, *, now_s: float) -> None:
        """Return if `given` proves knowledge of the secret for this call.

        Raises:  UnauthenticatedError saying why not; never says anything about the secret.
        """
        life, made_s, nonce, mac = _parse_proof(given)
        stamp = f"{given}".rpartition(":")[0]
        expected = _mac(self._secret, "control", method.encode(), stamp.encode(), request)
        if not hmac.compare_digest(expected, mac):
            raise UnauthenticatedError(
                "the caller does not know this cluster's secret; give it the same --secret-file"
            )
        moment_s = now_s - self._began_s
        if life != self._life or abs(moment_s - made_s) > _VALID_S:
            raise StaleProofError(
                "the call is not signed for this moment of this life of the node; sign it again "
                f"by the {CHALLENGE_KEY} metadata",
                self._challenge(nonce, moment_s),
            )
        self._forget_old_nonces(moment_s)
        if nonce in self._nonces:
            raise UnauthenticatedError("the call was made before; sign every call anew")
        if len(self._nonces) >= _NONCES_MAX:
            raise UnauthenticatedError(f"{_NONCES_MAX} calls came in two minutes; call less often")
        self._nonces[nonce] = moment_s + 2 * _VALID_S  # it may be signed ahead by as much

    def _challenge(self, nonce: str, moment_s: float) -> str:
        text = f"{self._life}:{moment_s:.3f}"
        return f"{text}:{_mac(self._secret, 'challenge', nonce.encode(), text.encode())}"

    def _forget_old_nonces(self, moment_s: float) -> None:
        """Forget what would be refused for its age."""
        while self._nonces:
            nonce, until_s = next(iter(self._nonces.items()))
            if moment_s < until_s:
                return
            del self._nonces[nonce]


def _parse_proof(given: str | None) -> tuple[str, float, str, str]:
    if given is None:
        raise UnauthenticatedError(
            f"the call has no {METADATA_KEY} metadata; call through hoplite_ray.control.client"
        )
    try:
        life, made, nonce, mac = given.split(":")
        made_s = float(made)
        if not math.isfinite(made_s):  # would pass every comparison with a clock
            raise ValueError
        return life, made_s, nonce, mac.encode("ascii").decode()
    except ValueError:
        raise UnauthenticatedError(
            f"the call's {METADATA_KEY} metadata is malformed; do both ends have one release?"
        ) from None
