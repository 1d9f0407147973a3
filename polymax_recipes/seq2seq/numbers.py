"""Numbers in words, English and French: a translation task with contiguous segments of attention.

"seventy three" is "soixante treize": sixty, thirteen; "ninety" is "quatre vingt dix": four twenty ten.
"""

import random
from pathlib import Path

UNITS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
TEENS = "seventeen eighteen nineteen"
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
UNITES = "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize"
DIZAINES = "vingt trente quarante cinquante soixante"


def english(n: int) -> str:
    """A number below ten thousand, in English words between spaces.

    Example:
        >>> english(1973)
        'one thousand nine hundred and seventy three'
    """
    words = f"{UNITS} {TEENS}".split()
    if n < 20:
        return words[n]
    if n < 100:
        return _join(TENS.split()[n // 10 - 2], english(n % 10) if n % 10 else "")
    if n < 1000:
        return _join(words[n // 100], "hundred", f"and {english(n % 100)}" if n % 100 else "")
    rest = n % 1000
    return _join(english(n // 1000), "thousand", "and" if 0 < rest < 100 else "", english(rest) if rest else "")


def french(n: int) -> str:
    """A number below ten thousand, in French words between spaces.

    Example:
        >>> french(1973), french(80), french(81), french(171)
        ('mille neuf cent soixante treize', 'quatre vingts', 'quatre vingt un', 'cent soixante et onze')
    """
    words = UNITES.split()
    if n < 17:
        return words[n]
    if n < 20:
        return _join("dix", words[n - 10])
    if n < 70:
        return _join(DIZAINES.split()[n // 10 - 2], "et" if n % 10 == 1 else "", words[n % 10] if n % 10 else "")
    if n < 80:
        return _join("soixante", "et" if n == 71 else "", french(n - 60))
    if n < 100:
        return "quatre vingts" if n == 80 else _join("quatre vingt", french(n - 80))
    if n < 1000:
        many = words[n // 100] if n >= 200 else ""
        return _join(many, "cents" if many and n % 100 == 0 else "cent", french(n % 100) if n % 100 else "")
    return _join(french(n // 1000) if n >= 2000 else "", "mille", french(n % 1000) if n % 1000 else "")


def write(folder: Path, train: int, dev: int, seed: int = 0) -> tuple[Path, Path]:
    """Write train.tsv and dev.tsv, of different numbers, a pair a line.

    Example:
        >>> import tempfile
        >>> train, dev = write(Path(tempfile.mkdtemp()), train=3, dev=2)
        >>> len(train.read_text(encoding="utf-8").splitlines())
        3
    """
    chosen = random.Random(seed).sample(range(10_000), train + dev)
    files = folder / "train.tsv", folder / "dev.tsv"
    for file, numbers in zip(files, (chosen[:train], chosen[train:])):
        file.write_text("".join(f"{english(n)}\t{french(n)}\n" for n in numbers), encoding="utf-8")
    return files


def _join(*words: str) -> str:
    return " ".join(word for word in words if word)
