from __future__ import annotations

import errno
import json
import os
import pickle
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mirror_pipeline.buffer.place import place
from mirror_pipeline.buffer.place.errors import explain
from mirror_pipeline.buffer.place.lane_file import LaneFile, read_lane_file, write_lane_file
from mirror_pipeline.buffer.place.lock import lane_lock
from mirror_pipeline.buffer.place.place import (
    DIRECTED_FORMAT,
    FIRST_FORMAT,
    MARKER,
    LaneStore,
    find_lanes,
    open_lane,
    open_to_others,
    raise_format,
)
from mirror_pipeline.errors import BufferUnusable, LaneBusy, UsageError
from tests.support.buffer_samples import Settings


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_folders_are_private(tmp_path: Path) -> None:
    os.umask(os.umask(0o022))
    store = open_lane(Settings(str(tmp_path / "buffer")), "m", "lane-0")
    assert [mode(tmp_path / "buffer" / part) for part in ("", "m", "m/lane-0")] == [0o700] * 3
    assert json.loads((tmp_path / "buffer" / MARKER).read_text())["format"] == 1
    assert pickle.loads(pickle.dumps(store)) == store  # noqa: S301


def test_relative_and_file_uris_name_the_same_absolute_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    relative = open_lane(Settings("./my buffer"), "m", "lane-0")
    assert relative.uri == str(tmp_path / "my buffer" / "m" / "lane-0")
    assert open_lane(Settings((tmp_path / "my buffer").as_uri()), "m", "lane-0") == relative


def test_lanes_are_found_without_making_any(tmp_path: Path) -> None:
    settings = Settings(str(tmp_path / "buffer"))
    assert find_lanes(settings, "m") == []
    assert not (tmp_path / "buffer").exists()
    made = [open_lane(settings, "m", f"lane-{number}") for number in range(2)]
    assert find_lanes(settings, "m") == made


def unusable(uri: Path) -> BufferUnusable:
    with pytest.raises(BufferUnusable) as caught:
        open_lane(Settings(str(uri)), "m", "lane-0")
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    return caught.value


def test_missing_parent_is_refused(tmp_path: Path) -> None:
    assert "does not exist" in str(unusable(tmp_path / "not-mounted" / "buffer"))


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "buffer").write_text("x")
    assert "not a directory" in str(unusable(tmp_path / "buffer"))


def test_a_file_in_the_place_of_the_lane_is_refused(tmp_path: Path) -> None:
    open_lane(Settings(str(tmp_path / "buffer")), "other", "lane-0")
    (tmp_path / "buffer" / "m").write_text("x")
    assert "not a directory" in str(unusable(tmp_path / "buffer"))


def test_somebody_elses_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    assert "thesis.tex" in str(unusable(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["thesis.tex"]


def test_a_mount_points_own_entries_are_no_strangers(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".snapshots").mkdir()
    open_lane(Settings(str(tmp_path)), "m", "lane-0")


@pytest.mark.parametrize(("text", "word"), [('{"format": 99}', "upgrade"), ("{", "damaged"), ("[]", "damaged")])
def test_a_marker_we_cannot_follow_is_refused(tmp_path: Path, text: str, word: str) -> None:
    (tmp_path / MARKER).write_text(text)
    assert word in str(unusable(tmp_path))


def test_a_raised_format_is_refused_by_a_version_that_does_not_know_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = Settings(str(tmp_path / "buffer"))
    store = open_lane(buffer, "m", "lane-0")
    raise_format(store, DIRECTED_FORMAT)
    raise_format(store, FIRST_FORMAT)
    assert json.loads((tmp_path / "buffer" / MARKER).read_text()) == {"format": DIRECTED_FORMAT, "made_by": "mirror-pipeline"}
    open_lane(buffer, "m", "lane-0")
    monkeypatch.setattr(place, "FORMAT", FIRST_FORMAT)
    assert "format 2, this version knows 1" in str(unusable(tmp_path / "buffer"))


def test_paths_that_delta_cannot_open_are_refused(tmp_path: Path) -> None:
    assert "%" in str(unusable(tmp_path / "a%20b"))


@pytest.mark.parametrize("name", ["../x", "", "a/b", ".hidden", "a b"])
def test_names_that_are_no_folder_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        open_lane(Settings(str(tmp_path / "buffer")), name, "lane-0")


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/bin/mount").exists(), reason="needs root to mount a small file system")
def test_full_and_read_only_disks_are_named(tmp_path: Path) -> None:
    mounted = tmp_path / "disk"
    mounted.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mounted)], capture_output=True).returncode:
        pytest.skip("no right to mount a tmpfs here")
    try:
        open_lane(Settings(str(mounted / "buffer")), "m", "lane-0")
        (mounted / "filler").write_bytes(b"x" * 40_000)
        with pytest.raises(OSError, match="No space"):
            (mounted / "more").write_bytes(b"x" * 40_000)
        full = unusable(mounted / "buffer")
        assert "disk is full" in str(full)
        assert full.retryable
        subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
        assert "not writable" in str(unusable(mounted / "buffer"))
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def test_a_full_disk_is_told_from_other_errors() -> None:
    assert explain("x", OSError(28, "No space left on device")).retryable
    assert explain("x", RuntimeError("Generic LocalFileSystem error: ... No space left on device (os error 28)")).retryable
    assert not explain("x", OSError(5, "Input/output error")).retryable
    assert not BufferUnusable("x").retryable


def test_status_is_replaced_as_a_whole(store: LaneStore) -> None:
    assert read_lane_file(store) == LaneFile()
    write_lane_file(store, LaneFile(state="running"))
    write_lane_file(store, LaneFile(state="finished"))
    assert read_lane_file(store) == LaneFile(state="finished")
    assert [name for name in os.listdir(store.uri) if name.startswith(".")] == []
    Path(store.uri, "status.json").write_text("")
    assert read_lane_file(store) == LaneFile()


def test_a_lane_is_held_by_one_run_only(store: LaneStore) -> None:
    named = pytest.raises(LaneBusy, match=rf"held by process {os.getpid()} on \S+ since 20")
    with lane_lock(store), named, lane_lock(store, patience=0):
        pass
    with lane_lock(store, patience=0):
        pass


HOLD = """
import sys, time
from mirror_pipeline.buffer.place.lock import lane_lock
from mirror_pipeline.buffer.place.place import LaneStore
with lane_lock(LaneStore(sys.argv[1], "m", "l")):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_killed_holder_lets_go(store: LaneStore) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, store.uri], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LaneBusy, match=f"process {holder.pid} "), lane_lock(store, patience=0):
            pass
        holder.kill()
    with lane_lock(store):
        pass


@pytest.mark.parametrize("uri", ["gs://bucket/buffer", "abfss://container/buffer", "hdfs://name/buffer", "s3a://bucket/buffer"])
def test_other_stores_are_refused(uri: str) -> None:
    with pytest.raises(UsageError, match="only folders and s3:// are supported"):
        open_lane(Settings(uri), "m", "lane-0")
    with pytest.raises(UsageError, match="only folders and s3:// are supported"):
        find_lanes(Settings(uri), "m")


@pytest.mark.parametrize(
    ("part", "opened", "said"),
    [
        ("", 0o777, "may write to .*/buffer .mode 0777."),
        ("m", 0o703, "may write to .*/m .mode 0703."),
        ("m/lane-0", 0o777, "may write to .*/lane-0"),
        ("m/lane-0", 0o704, "may read .*/lane-0 .mode 0704.: chmod o= it"),
        ("", 0o755, ""),  # what lies in it is closed
        ("m/lane-0", 0o770, ""),  # a volume of Kubernetes with an fsGroup
    ],
)
def test_folders_that_were_opened_to_others_are_named(tmp_path: Path, part: str, opened: int, said: str) -> None:
    store = open_lane(Settings(str(tmp_path / "buffer")), "m", "lane-0")
    assert open_to_others(store) == ""
    Path(store.root, part).chmod(opened)
    if said:
        assert re.search(said, open_to_others(store))
    else:
        assert open_to_others(store) == ""


def test_a_file_system_without_hard_links_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(source: str, target: str) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", source)

    monkeypatch.setattr(os, "link", none)
    assert "its file system has no hard links" in str(unusable(tmp_path / "buffer"))
    monkeypatch.undo()
    store = open_lane(Settings(str(tmp_path / "buffer")), "m", "lane-0")
    assert os.listdir(store.uri) == []
