"""What the table of changes says of settings that the target has refused."""

from __future__ import annotations

from mirror_pipeline.features.topic_sync.settings_round import _as_before
from mirror_pipeline.features.topic_sync.topic_changes import SETTING, Made

OLD, NEW, REMOVED = (Made(SETTING, "t", name) for name in ("old", "new", "removed"))


def test_a_refused_change_leaves_a_setting_the_mirrors_own() -> None:
    before = {OLD: "1", REMOVED: "5"}
    back, over = _as_before({OLD: "2"}, [REMOVED], before, {OLD})
    assert (back, over) == ({OLD: "1"}, [REMOVED]), "as before; what was not refused is done"


def test_a_refused_new_setting_is_nobodys() -> None:
    assert _as_before({NEW: "2"}, [], {}, {NEW}) == ({}, [NEW])


def test_a_refused_removal_stays_the_mirrors() -> None:
    assert _as_before({}, [REMOVED], {REMOVED: "5"}, {REMOVED}) == ({}, [])
