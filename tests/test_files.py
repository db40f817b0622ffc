"""Files from elsewhere are read within bounds, and ours are written nowhere else."""

import errno
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from skipless import files
from skipless.files import (
    lock,
    parse,
    read_bytes,
    read_document,
    read_rows,
    require_inside,
    write_atomically,
    write_new,
)
from skipless.report.figures import CMapCurve, draw_c_maps

posix = pytest.mark.skipif(sys.platform == "win32", reason="pipes and locks are those of POSIX")


@pytest.mark.parametrize(
    ("text", "parser"),
    [
        ('{"a":' * 100_000, None),
        ("[" * 65 + "]" * 65, None),
        ("a = " + "[" * 100_000, tomllib.loads),
        ("[" * 20_000, yaml.safe_load),
        ("&a [*a]", yaml.safe_load),  # which holds itself
    ],
)
def test_deep_nesting_is_one_error_in_every_language(text: str, parser) -> None:
    with pytest.raises(ValueError, match=r"^it is nested more than 64 levels deep$"):
        parse(text, *([parser] if parser else []))


@pytest.mark.parametrize("parser", [None, tomllib.loads, yaml.safe_load])
def test_no_integer_is_larger_than_a_float(parser) -> None:
    text = "{a: %d}" if parser is yaml.safe_load else "a = %d" if parser else '{"a": %d}'
    read = lambda number: parse(text % number, *([parser] if parser else []))
    assert read(2**1023 - 1) == {"a": 2**1023 - 1}
    for large in (2**1023, -(2**1023)):
        with pytest.raises(ValueError, match="a number is too large"):
            read(large)


def test_what_is_nested_less_deeply_is_read() -> None:
    found = parse("[" * 64 + "]" * 64)
    for _ in range(63):
        (found,) = found
    assert found == []


def test_aliases_that_stand_for_billions_of_values_take_no_longer_than_they_are() -> None:
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 50))]
    assert len(parse("\n".join(lines), yaml.safe_load)) == 50


@pytest.mark.parametrize(
    "text", ["a: !!bool x", "!!timestamp x", "!!int ''", "!!python/object/apply:os.getpid []", "%"]
)
def test_what_yaml_cannot_build_is_an_error_of_value(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text, yaml.safe_load)


@posix
@pytest.mark.parametrize("read", [read_bytes, read_document, lambda path: list(read_rows(path))])
def test_pipes_devices_and_folders_are_not_read(tmp_path: Path, read) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for name in ("pipe", "link", "."):
        with pytest.raises(OSError, match="Not a regular file"):
            read(tmp_path / name)


def test_no_more_than_the_bound_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_bytes(path, 5) == b"12345"
    with pytest.raises(ValueError, match="it has more than 4 bytes"):
        read_bytes(path, 4)


def test_a_bad_row_is_named_with_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 50)
    path = tmp_path / "metrics.jsonl"
    good = b'{"kind": "train"}\n'
    for bad in (b"7\n", b"[]\n", b'{"step": 1}\n', b'{"kind": 3}\n', b"{\xff}\n", b"x" * 51):
        path.write_bytes(good + b"\n" + bad + good)
        with pytest.raises(ValueError, match=r"metrics\.jsonl, row 3, is damaged: .*Delete the"):
            list(read_rows(path, maybe_cut=True))


def test_only_the_end_of_a_file_may_be_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "a"}\n\n{"kind": "b"}\n{"kind": "c"')
    assert list(read_rows(path, maybe_cut=True)) == [{"kind": "a"}, {"kind": "b"}]
    with pytest.raises(ValueError, match="row 4, is damaged"):
        list(read_rows(path))
    path.write_text('{"kind": "a"}\n{"kind": "c"\n')
    with pytest.raises(ValueError, match="row 2, is damaged"):
        list(read_rows(path, maybe_cut=True))


@pytest.mark.parametrize("name", ["page.html", "page.html.partial"])
@pytest.mark.parametrize("kind", ["link", "hard link", "dangling link"])
def test_nothing_is_written_through_a_link(tmp_path: Path, name: str, kind: str) -> None:
    victim, path = tmp_path / "victim", tmp_path / "page.html"
    if kind != "dangling link":
        victim.write_text("mine")
    if kind == "hard link":
        os.link(victim, tmp_path / name)
    else:
        (tmp_path / name).symlink_to(victim)
    write_atomically(path, "text")
    assert path.read_text() == "text"
    assert not path.is_symlink()
    assert sorted(p.name for p in tmp_path.iterdir()) == (
        ["page.html"] if kind == "dangling link" else ["page.html", "victim"]
    )
    assert kind == "dangling link" or victim.read_text() == "mine"


def test_a_figure_is_not_written_through_a_link_either(tmp_path: Path) -> None:
    import numpy as np

    (tmp_path / "victim").write_text("mine")
    (tmp_path / "c_maps.png").symlink_to(tmp_path / "victim")
    line = np.linspace(-1.0, 1.0, 3)
    draw_c_maps([CMapCurve("a", line, line, line, line)], "C maps", tmp_path / "c_maps.png")
    assert (tmp_path / "victim").read_text() == "mine"
    assert (tmp_path / "c_maps.png").read_bytes().startswith(b"\x89PNG")


def test_a_write_that_fails_names_its_file_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match=r"taken") as raised:
        write_atomically(tmp_path / "taken", "text")
    assert raised.value.filename == str(tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_characters_that_utf_8_has_not_are_replaced(tmp_path: Path) -> None:
    write_atomically(tmp_path / "page", "run \udcff")
    assert (tmp_path / "page").read_bytes() == b"run ?"


def test_a_new_file_replaces_what_has_its_name(tmp_path: Path) -> None:
    write_new(tmp_path / "a", b"one")
    write_new(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"two"


def test_folders_may_be_links_only_within_the_one_above(tmp_path: Path) -> None:
    run, inner, outer = tmp_path / "run", tmp_path / "run" / "own", tmp_path / "other"
    inner.mkdir(parents=True)
    outer.mkdir()
    require_inside(inner, run)
    require_inside(run / "missing", run)
    (run / "a").symlink_to(inner)
    require_inside(run / "a", run)
    (run / "b").symlink_to(outer)
    with pytest.raises(ValueError, match=rf"b is a link to {outer}, and nothing outside of"):
        require_inside(run / "b", run)
    alias = tmp_path / "alias"  # the folder above may itself be a link: the user named it
    alias.symlink_to(run)
    require_inside(alias / "a", alias)


class Msvcrt:
    """The lock of Windows' C library as Microsoft describes it, over a set of locked files."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        self.held: set[tuple[int, int]] = set()

    def locking(self, descriptor: int, mode: int, count: int) -> None:
        status = os.fstat(descriptor)
        assert (mode, count, os.lseek(descriptor, 0, os.SEEK_CUR)) == (self.LK_NBLCK, 1, 0)
        if (key := (status.st_dev, status.st_ino)) in self.held:
            raise PermissionError(errno.EACCES, "Permission denied")
        self.held.add(key)


def test_on_windows_the_first_byte_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Msvcrt()
    monkeypatch.setitem(sys.modules, "msvcrt", library)
    monkeypatch.setattr(sys, "platform", "win32")
    path = tmp_path / "lock"
    with lock(path, wait=False):
        assert library.held
        with pytest.raises(BlockingIOError, match="Permission denied"), lock(path, wait=False):
            pass
        monkeypatch.setattr("time.sleep", lambda seconds: library.held.clear())
        with lock(path, wait=True):  # as soon as the other has let go
            assert library.held


@posix
def test_a_lock_dies_with_its_process_and_empties_no_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("mine")
    hold = (
        "import sys, time; from pathlib import Path; from skipless.files import lock\n"
        "with lock(Path(sys.argv[1]), wait=False): print('held', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", hold, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    with pytest.raises(BlockingIOError), lock(path, wait=False):
        pass
    other.kill()
    with lock(path, wait=True):  # as soon as it is dead
        pass
    other.communicate()
    assert path.read_text() == "mine"
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic link"), lock(tmp_path / "link", wait=False):
        pass
