"""Speech from text by espeak-ng, and text from speech by PocketSphinx.

The packages `espeakng-loader` and `pocketsphinx` bring their voices and their acoustic model along:
nothing is downloaded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import numpy as np
from support.models.facts import spoken_questions

HEARD_HZ = 16_000  # samples a second, as PocketSphinx wants them
PAD_S = 0.3  # of silence at both ends, without which the last word is misheard
NOISE = 30  # of a microphone: silence that is nothing but zeros is no speech that a model knows
# Constants of espeak-ng, from its speak_lib.h.
SYNCHRONOUS, CHARACTERS, UTF8, RATE, PITCH = 2, 1, 1, 1, 3
# Voices of questions: name, words a minute, pitch of 100.
VOICES = (("en-us", 140, 50), ("en-us+f3", 140, 50), ("en-us+m3", 140, 50), ("en-us+f2", 140, 50))

Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
)


class Voice:
    """Speaks texts. A process has one voice at a time, because espeak-ng's state is global."""

    def __init__(self) -> None:
        import espeakng_loader

        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        data = str(espeakng_loader.get_data_path()).encode()
        self.rate_hz = self._library.espeak_Initialize(SYNCHRONOUS, 0, data, 0)
        if self.rate_hz <= 0:
            raise RuntimeError(f"espeak-ng does not start with its data in {data.decode()}")
        self._spoken: list[np.ndarray] = []
        self._callback = Callback(self._take)  # must live as long as the library calls it
        self._library.espeak_SetSynthCallback(self._callback)

    def speak(self, text: str, voice: tuple[str, int, int] = VOICES[0]) -> np.ndarray:
        """Return the samples of a text, int16, `rate_hz` of them a second."""
        name, words_per_minute, pitch = voice
        if self._library.espeak_SetVoiceByName(name.encode()) != 0:
            raise ValueError(f"espeak-ng has no voice {name!r}")
        self._library.espeak_SetParameter(RATE, words_per_minute, 0)
        self._library.espeak_SetParameter(PITCH, pitch, 0)
        self._spoken = []
        encoded = text.encode()
        self._library.espeak_Synth(encoded, len(encoded) + 1, 0, CHARACTERS, 0, UTF8, None, None)
        return np.concatenate(self._spoken) if self._spoken else np.zeros(0, np.int16)

    def _take(self, samples: ctypes._Pointer[ctypes.c_short], count: int, events: int) -> int:
        if samples and count > 0:
            self._spoken.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0  # go on

    def ask(self, text: str, voice: tuple[str, int, int], draw: np.random.Generator) -> np.ndarray:
        """Return a spoken question as a `Listener` gets it, with a little noise."""
        from scipy.signal import resample_poly

        loud = resample_poly(self.speak(text, voice).astype(np.float32), HEARD_HZ, self.rate_hz)
        silence = np.zeros(round(PAD_S * HEARD_HZ), np.float32)
        padded = np.concatenate([silence, loud, silence])
        padded += draw.normal(0, NOISE, len(padded))
        return np.clip(padded, -32_768, 32_767).astype(np.int16)


class Listener:
    """Hears sentences of a grammar, by PocketSphinx."""

    def __init__(self, leads: Iterable[str], things: Iterable[str], numbers: Iterable[str]) -> None:
        from pocketsphinx import Decoder

        self._decoder = Decoder(samprate=HEARD_HZ, lm=None, loglevel="FATAL")
        self._decoder.add_jsgf_string("questions", write_grammar(leads, things, numbers))
        self._decoder.activate_search("questions")

    def hear(self, samples: np.ndarray) -> str:
        """Return the sentence that was said; an empty text if it is none of the grammar's."""
        self._decoder.start_utt()
        self._decoder.process_raw(samples.tobytes(), full_utt=True)
        self._decoder.end_utt()
        found = self._decoder.hyp()
        return found.hypstr if found else ""


def write_grammar(leads: Iterable[str], things: Iterable[str], numbers: Iterable[str]) -> str:
    """Return a grammar, in JSGF, of questions such as `what is planet number two`."""
    rules = {"lead": leads, "thing": things, "number": numbers}
    lines = [f"<{name}> = {' | '.join(words)};" for name, words in rules.items()]
    question = "public <question> = <lead> <thing> number <number>;"
    return "\n".join(["#JSGF V1.0;", "grammar questions;", *lines, question])


def draw_questions(count: int) -> tuple[list[np.ndarray], list[int]]:
    """Return so many spoken questions, and the numbers of their passages."""
    questions, draw, voice = spoken_questions(), np.random.default_rng(1), Voice()
    chosen = [questions[number] for number in draw.choice(len(questions), count, replace=False)]
    speakers = draw.integers(len(VOICES), size=count)
    said = [
        voice.ask(text, VOICES[speaker], draw)
        for (text, _), speaker in zip(chosen, speakers, strict=True)
    ]
    return said, [number for _, number in chosen]
