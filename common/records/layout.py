"""Names of runs' folders: what every shell, page and broker takes. Loads little."""

from __future__ import annotations

import re
import unicodedata

RESUME = "resume.json"  # what a resumed cloud needs: paths of this machine, so it is in no bundle
HALT_OWED = "halt_owed"  # its key for a run that has ended while the broker was away: no edge was told
LONGEST = 64  # characters before the stamp: those of a run's name on a broker
STAMP = 25  # characters of the moment and the random part that follow
_OTHERS = re.compile(r"[^A-Za-z0-9._-]+")


def folder_name(text: str, most: int = LONGEST) -> str:
    """Return a text, e.g. the name of a scenario's file, in letters, digits and `. _ -`, neither hidden nor an option.

    A text that is such a name already stays as it is. Accents are dropped; anything else becomes `-`.
    """
    plain = "".join(one for one in unicodedata.normalize("NFKD", text) if not unicodedata.combining(one))
    return _OTHERS.sub("-", plain).lstrip(".-")[:most] or "run"


_KEEP_BELOW = 10**9  # bytes: a log that stays below is kept unless the scenario says otherwise


def keeps_gradients(asked: bool | None, iterations: int, dimension: int) -> bool:
    """Tell whether the log stays for a replay: as asked, else where T·4N is below 1 GB."""
    return iterations * 4 * dimension < _KEEP_BELOW if asked is None else asked
