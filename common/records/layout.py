"""Names in a runs folder, and whether a run's gradient log is kept. Loads little: every container begins here."""

from __future__ import annotations

import re
import unicodedata

RESUME = "resume.json"  # what a resumed cloud needs: paths of this machine, so it is in no bundle
HALT_OWED = "halt_owed"  # its key for a run that has ended while the broker was away: no edge was told
LONGEST = 64  # characters before the stamp: those of a run's name on a broker
STAMP = 25  # characters of the moment and the random part that follow
_STAMP = re.compile(r"-\d{8}-\d{6}-[0-9a-f]{8}\Z")
_OTHERS = re.compile(r"[^A-Za-z0-9._-]+")
_KEEP_BELOW = 10**9  # bytes: a log that stays below is kept unless the scenario says otherwise


def folder_name(text: str, most: int = LONGEST) -> str:
    """Return a text, e.g. the name of a scenario's file, in letters, digits and `. _ -`, neither hidden nor an option.

    A text that is such a name already stays as it is. Accents are dropped; anything else becomes `-`.
    """
    plain = "".join(one for one in unicodedata.normalize("NFKD", text) if not unicodedata.combining(one))
    return _OTHERS.sub("-", plain).lstrip(".-")[:most] or "run"


def name_before_stamp(folder: str) -> str:
    """Return a run's name on its broker from its folder's: without the stamp that `new_run_id` puts after it."""
    return _STAMP.sub("", folder)


def keeps_gradients(asked: bool | None, iterations: int, dimension: int) -> bool:
    """Tell whether the log stays for a replay: as asked, else where T·4N is below 1 GB."""
    return iterations * 4 * dimension < _KEEP_BELOW if asked is None else asked
