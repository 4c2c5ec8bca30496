"""Proof, on every control call, that the caller knows the cluster's secret (design decision 15).

A proof is an HMAC-SHA256 over the method, the request's bytes, the time and a nonce, so that it
fits one request only, once, and for a minute. The secret itself never travels. gRPC without TLS
does not hide what is asked and answered; tls.py does, where Ray's settings say so.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets

from hoplite_ray.errors import UnauthenticatedError

METADATA_KEY = "hoplite-proof"
SECRET_BYTES_MIN = 16  # 128 bits: what HMAC-SHA256 needs to be out of reach of guessing

_LIFE_S = 60.0  # clocks of one cluster are closer than this; a replay later than it is refused
_NONCES_MAX = 65536  # of the last minute; a busier control plane than this is out of order


def proof(secret: bytes, method: str, request: bytes, *, now_s: float) -> str:
    """Return the metadata value for one call."""
    stamp = f"{now_s:.3f}:{secrets.token_hex(16)}"
    return f"{stamp}:{_mac(secret, method, request, stamp)}"


def _mac(secret: bytes, method: str, request: bytes, stamp: str) -> str:
    covered = b"\0".join([b"hoplite-control-1", method.encode(), stamp.encode(), request])
    return hmac.new(secret, covered, hashlib.sha256).hexdigest()


class Verifier:
    """Checks proofs and remembers the nonces of the last minute. One event loop owns it."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._seen: dict[str, float] = {}  # nonce -> when it may be forgotten; oldest first

    def check(self, method: str, request: bytes, given: str | None, *, now_s: float) -> None:
        """Return if `given` proves knowledge of the secret for this call.

        Raises:  UnauthenticatedError saying why not; never says anything about the secret.
        """
        made_s, nonce, mac = _parts(given)
        expected = _mac(self._secret, method, request, f"{given}".rpartition(":")[0])
        if not hmac.compare_digest(expected, mac):
            raise UnauthenticatedError(
                "the caller does not know this cluster's secret; give it the same --secret-file"
            )
        if abs(now_s - made_s) > _LIFE_S:
            raise UnauthenticatedError(
                f"the call was signed {now_s - made_s:.0f} s ago by the caller's clock; "
                "set the clocks of both machines"
            )
        self._forget(now_s)
        if nonce in self._seen:
            raise UnauthenticatedError("the call was made before; sign every call anew")
        if len(self._seen) >= _NONCES_MAX:
            raise UnauthenticatedError(f"{_NONCES_MAX} calls came in two minutes; call less often")
        self._seen[nonce] = now_s + 2 * _LIFE_S

    def _forget(self, now_s: float) -> None:
        """Forget what would be refused for its age; also what a clock since set back made."""
        while self._seen:
            nonce, until_s = next(iter(self._seen.items()))
            if now_s < until_s <= now_s + 4 * _LIFE_S:  # signed at most two lives before that
                return
            del self._seen[nonce]


def _parts(given: str | None) -> tuple[float, str, str]:
    if given is None:
        raise UnauthenticatedError(
            f"the call has no {METADATA_KEY} metadata; call through hoplite_ray.control.client"
        )
    try:
        made, nonce, mac = given.split(":")
        made_s = float(made)
        if not math.isfinite(made_s):  # would pass every comparison with a clock
            raise ValueError
        return made_s, nonce, mac.encode("ascii").decode()
    except ValueError:
        raise UnauthenticatedError(f"the call's {METADATA_KEY} metadata is malformed") from None
