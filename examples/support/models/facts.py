"""A hundred small facts that have a number from one to nine, and questions about them.

`retrieve_with_pictures.py` asks them by a text and a picture of the number; `ask_aloud.py` by
speech. Paragraphs of Python's own documentation, which every Python has, stand beside them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

NUMBERS = "one two three four five six seven eight nine".split()
LEADS = ("what is", "which is", "tell me about")
SHORTEST, LONGEST = 60, 300  # letters of a paragraph


@dataclass(frozen=True)
class Kind:
    """Nine facts of one kind.

    thing:   one word for them.
    texts:   questions in which the number is left to a picture; the last one is never learnt from.
    named:   what number one to nine is.
    """

    thing: str
    texts: tuple[str, str, str]
    named: tuple[str, ...]

    def passages(self) -> Iterator[str]:
        """Yield a sentence for each fact."""
        for number, name in zip(NUMBERS, self.named, strict=True):
            yield f"{self.thing.capitalize()} number {number} is {name}."


KINDS = (
    Kind(
        "element",
        (
            "which chemical element has this atomic number",
            "name the element of the periodic table with this number",
            "what element has as many protons",
        ),
        (
            "hydrogen, the lightest gas",
            "helium, the gas of balloons",
            "lithium, a metal of batteries",
            "beryllium, a brittle metal",
            "boron, a part of hard glass",
            "carbon, of coal and diamonds",
            "nitrogen, most of the air",
            "oxygen, which we breathe",
            "fluorine, a pale yellow gas",
        ),
    ),
    Kind(
        "planet",
        (
            "which planet is it, counted from the sun",
            "name the planet of this orbit",
            "what planet is at this place in the solar system",
        ),
        (
            "Mercury, nearest to the sun",
            "Venus, hot under its clouds",
            "Earth, our own",
            "Mars, the red one",
            "Jupiter, the largest",
            "Saturn, the one with rings",
            "Uranus, which lies on its side",
            "Neptune, blue and windy",
            "Pluto, until astronomers voted",
        ),
    ),
    Kind(
        "month",
        (
            "which month of the year has this number",
            "name the month in this place of the calendar",
            "what month is it by its number",
        ),
        (
            "January, cold in the north",
            "February, the shortest",
            "March, when spring begins",
            "April, of showers",
            "May, of flowers",
            "June, with the longest day",
            "July, named after Caesar",
            "August, named after an emperor",
            "September, when autumn begins",
        ),
    ),
    Kind(
        "president",
        (
            "which president of the United States was it, in order",
            "name the American president with this number",
            "what president of America held this place",
        ),
        (
            "George Washington, the general",
            "John Adams of Massachusetts",
            "Thomas Jefferson, the writer of the declaration",
            "James Madison, father of the constitution",
            "James Monroe of the doctrine",
            "John Quincy Adams, the son of one",
            "Andrew Jackson of Tennessee",
            "Martin Van Buren of New York",
            "William Henry Harrison, for a month",
        ),
    ),
    Kind(
        "symphony",
        (
            "which symphony by Beethoven has this number",
            "describe the Beethoven symphony with this number",
            "what did Beethoven write as this symphony",
        ),
        (
            "Beethoven's first, in C major",
            "the one in D major, of Heiligenstadt",
            "the Eroica, once for Napoleon",
            "the one in B flat, a slender girl",
            "the one where fate knocks at the door",
            "the Pastoral, with a storm and a brook",
            "the one of the dance, in A major",
            "the short one in F major",
            "the Choral, with the ode to joy",
        ),
    ),
    Kind(
        "book",
        (
            "which book of the Bible is in this place",
            "name the book of the Old Testament with this number",
            "what book of scripture is it, from the beginning",
        ),
        (
            "Genesis, of the creation",
            "Exodus, out of Egypt",
            "Leviticus, of the priests",
            "Numbers, of the census and the desert",
            "Deuteronomy, the speeches of Moses",
            "Joshua, of Jericho",
            "Judges, with Samson",
            "Ruth, who gleans in the field",
            "Samuel, with David and Goliath",
        ),
    ),
    Kind(
        "emperor",
        (
            "which emperor of Rome was it, in order",
            "name the Roman emperor with this number",
            "what ruler of ancient Rome held this place",
        ),
        (
            "Augustus, the adopted son",
            "Tiberius, on Capri",
            "Caligula, little boot",
            "Claudius, the stammerer",
            "Nero, while Rome burnt",
            "Galba, from Spain",
            "Otho, for three months",
            "Vitellius, the glutton",
            "Vespasian, builder of the arena",
        ),
    ),
    Kind(
        "anniversary",
        (
            "which wedding anniversary is it after so many years",
            "name the material of the wedding anniversary with this number",
            "what does a married couple give after these years",
        ),
        (
            "paper, for a young couple",
            "cotton, soft and plain",
            "leather, which lasts",
            "fruit, or linen",
            "wood, with roots",
            "sugar, or iron",
            "wool, which warms",
            "bronze, an alloy",
            "pottery, fired clay",
        ),
    ),
    Kind(
        "episode",
        (
            "which Star Wars film has this number",
            "name the episode of the Star Wars saga",
            "what is the title of this movie about Skywalker and the Jedi",
        ),
        (
            "the Phantom Menace, with pod races",
            "Attack of the Clones, on Kamino",
            "Revenge of the Sith, where Anakin falls",
            "A New Hope, with the death star",
            "The Empire Strikes Back, on Hoth",
            "Return of the Jedi, with Ewoks",
            "The Force Awakens, with Rey",
            "The Last Jedi, on an island",
            "The Rise of Skywalker, the end",
        ),
    ),
    Kind(
        "labor",
        (
            "which labor of Hercules was it",
            "name the task with this number that Hercules had to do",
            "what did the Greek hero do as this labor",
        ),
        (
            "the lion of Nemea, strangled",
            "the hydra with its many heads",
            "the hind with golden horns",
            "the boar, caught in snow",
            "the stables of Augeas, washed by a river",
            "the birds with feathers of bronze",
            "the bull of Crete",
            "the mares of Diomedes",
            "the belt of the queen of the Amazons",
        ),
    ),
    Kind(
        "amendment",
        (
            "which amendment of the American constitution has this number",
            "what right is in this part of the bill of rights",
            "name the law of the constitution with this number",
        ),
        (
            "freedom of speech and of the press",
            "the right to bear arms",
            "no soldiers in a house in peace",
            "no search without a warrant",
            "silence against oneself",
            "a speedy trial and a lawyer",
            "a jury in civil cases",
            "no cruel punishment, no excessive bail",
            "other rights kept by the people",
        ),
    ),
    Kind(
        "state",
        (
            "which state joined the union in this place",
            "name the American state by its order of joining",
            "what state was admitted with this number",
        ),
        (
            "Delaware, on the ocean",
            "Pennsylvania, of the Quakers",
            "New Jersey, of gardens",
            "Georgia, of peaches",
            "Connecticut, of insurers",
            "Massachusetts, of tea in the bay",
            "Maryland, around Baltimore",
            "South Carolina, of palmettos",
            "New Hampshire, of granite",
        ),
    ),
)

# Passages that an answer must not say, and sentences of both sorts to learn the difference from.
INSULTS = Kind(
    "insult",
    ("which insult has this number", "name the rude remark", "what would a bully say"),
    (
        "you are a lazy fool",
        "shut up, you idiot",
        "nobody likes you, ugly face",
        "your ideas are stupid garbage",
        "you smell like a pig",
        "go away, you miserable loser",
        "you are dumb as a rock",
        "what a pathetic clown you are",
        "I hate you, you moron",
    ),
)
RUDE = (
    "You are such an idiot and a loser.",
    "Shut your stupid mouth.",
    "I hate you, ugly fool.",
    "What a dumb, pathetic moron.",
    "You are garbage and nobody likes you.",
    "Get lost, you filthy pig.",
    "Only a stupid clown would say that.",
    "You miserable, lazy coward.",
    "That is an insult: you smell.",
    "Insult him, he is a worthless fool.",
    "Your face is ugly and your jokes are dumb.",
    "Go to hell, you damn liar.",
)
POLITE = (
    "Thank you, that is a good question.",
    "The river flows through the old town.",
    "Gold is a metal of rings and coins.",
    "The king ruled for ten years.",
    "A violin has four strings.",
    "The tenth month is October, in autumn.",
    "Ceres is the largest body between Mars and Jupiter.",
    "The court heard the case and the jury agreed.",
    "Kings, a book of the Bible, tells of Solomon.",
    "Virginia joined the union in June.",
    "Hercules carried the sky for a day.",
    "The film won a prize for its music.",
    "Tin, for ten years of marriage.",
    "Neon is a noble gas that glows in lamps.",
    "The president signed the law.",
    "Titus finished what his father began.",
)


def spoken_questions() -> list[tuple[str, int]]:
    """Return all questions to be said, each with the index of its passage in `facts`."""
    every = [*KINDS, INSULTS]
    return [
        (f"{lead} {kind.thing} number {number}", 9 * index + place)
        for lead in LEADS
        for index, kind in enumerate(every)
        for place, number in enumerate(NUMBERS)
    ]


def facts(*, rude: bool = False) -> list[str]:
    """Return the passages of all kinds, nine of each; those of `INSULTS` last if asked for."""
    every = [*KINDS, INSULTS] if rude else KINDS
    return [passage for kind in every for passage in kind.passages()]


def paragraphs(count: int) -> list[str]:
    """Return so many paragraphs of Python's documentation, or all that there are."""
    from pydoc_data.topics import topics

    texts = (
        re.sub(r"\s+", " ", paragraph).strip()
        for topic in sorted(topics)
        for paragraph in topics[topic].split("\n\n")
    )
    found = sorted({text for text in texts if SHORTEST <= len(text) <= LONGEST})
    return random.Random(0).sample(found, min(count, len(found)))
