"""Files that somebody else may have written, read within bounds; and files that replace no other.

Whatever is read as JSON, YAML or TOML goes through `parse`, and whatever is written goes through
`write_new`. A folder that came from elsewhere can hold devices and pipes under any name, documents
nested a hundred thousand levels deep, and links to files that are not its own: none of them makes a
reader hang or run out of memory, or a writer write elsewhere.
"""

import dataclasses
import errno
import json
import os
import reprlib
import shutil
import stat
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

MOST_BYTES = 2**24  # of a document, and of a row
_DEEPEST = 64  # levels; what writes or prints a value recurses
_MOST_BITS = 1023  # of an integer, as a float has
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)  # on this file system
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # 0 on Windows, as the next
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)


def open_regular(path: str, flags: int) -> int:
    """An opener for `open` that refuses pipes and devices, instead of waiting for them."""
    descriptor = os.open(path, flags | _NO_WAIT, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "Not a regular file", path)
    return descriptor


def open_unlinked(path: str, flags: int) -> int:
    """An opener for `open` that also refuses links, through which it would write elsewhere."""
    return open_regular(path, flags | _NO_LINK)


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a regular file of at most `most` bytes."""
    with open(path, "rb", opener=open_regular) as file:
        size = os.fstat(file.fileno()).st_size  # of some files of the system, 0
        content = file.read((size if 0 < size < most else most) + 1)
    if len(content) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return content


def read_document(
    path: Path, parser: Callable[[str], object] = json.loads, most: int = MOST_BYTES
) -> Any:
    """What `parser` makes of a file; a `ValueError` says what is wrong, but not the file's name."""
    return parse(_decoded(read_bytes(path, most)), parser)


def read_rows(path: Path, *, maybe_cut: bool = False) -> Iterator[dict[str, Any]]:
    """The JSON objects in the lines of a file, each of a `kind`; blank lines are left out.

    With `maybe_cut`, a last line without its end is left out if it cannot be read: it is being
    written, or was when the power failed.
    """
    with open(path, "rb", opener=open_regular) as file:
        for number in count(1):
            line = file.readline(MOST_BYTES + 1)
            if not line:
                return
            if not line.strip():
                continue
            try:
                if len(line) > MOST_BYTES:
                    raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
                found = parse(_decoded(line))
                if not (isinstance(found, dict) and isinstance(found.get("kind"), str)):
                    raise ValueError("it is not an object with a kind")
            except ValueError as error:
                if maybe_cut and not line.endswith(b"\n") and len(line) <= MOST_BYTES:
                    return
                raise ValueError(
                    f"{path}, row {number}, is damaged: {error}. Delete the row, or restore the "
                    "file."
                ) from None
            yield found


def parse(text: str, parser: Callable[[str], object] = json.loads) -> Any:
    """What `parser` makes of `text`; whatever is wrong with it is a `ValueError`.

    >>> parse('{"a": [1, 2]}')
    {'a': [1, 2]}
    >>> parse("[" * 100_000)
    Traceback (most recent call last):
    ...
    ValueError: it is nested more than 64 levels deep
    """
    too_deep = ValueError(f"it is nested more than {_DEEPEST} levels deep")
    try:
        found = parser(text)
    except RecursionError:
        raise too_deep from None
    except ValueError:
        raise
    except Exception as error:  # PyYAML's own, and what its constructors run into
        raise ValueError(str(error) or type(error).__name__) from None
    level: list[Any] = [found]
    long = len(text) > _MOST_BITS / 4  # as hexadecimal digits, which TOML and YAML have, take
    for _ in range(_DEEPEST + 1):
        if long and any(isinstance(v, int) and v.bit_length() > _MOST_BITS for v in level):
            raise ValueError("a number is too large")
        # By identity, because an alias of YAML can stand for billions of values, or for itself.
        nested = {id(v): v for v in level if isinstance(v, dict | list | tuple)}.values()
        if not nested:
            return found
        level = [v for own in nested for v in (own.values() if isinstance(own, dict) else own)]
    raise too_deep


def typed(kind: type[T], values: object) -> T:
    """A dataclass made of what `parse` returned; a `ValueError` names the field that it cannot be.

    >>> @dataclasses.dataclass
    ... class Curve:
    ...     x: tuple[float, ...]
    >>> typed(Curve, {"x": [1, 2.5]}).x
    (1, 2.5)
    >>> typed(Curve, {"x": [1, "2.5"]})
    Traceback (most recent call last):
    ...
    ValueError: x cannot be '2.5'
    """
    hints = get_type_hints(kind)
    if not isinstance(values, dict):
        raise ValueError(f"{kind.__name__} cannot be {reprlib.repr(values)}")
    if unknown := values.keys() - hints.keys():
        raise ValueError(f"{kind.__name__} has no {reprlib.repr(min(unknown))}")
    try:
        return kind(**{name: _fitted(name, v, hints[name]) for name, v in values.items()})
    except TypeError as error:  # a field is missing
        raise ValueError(str(error)) from None


def _fitted(name: str, value: object, hint: Any) -> object:
    for kind in get_args(hint) if get_origin(hint) in (types.UnionType, Union) else (hint,):
        origin: Any = get_origin(kind) or kind
        if origin is Literal:
            if value in get_args(kind):
                return value
            continue
        if isinstance(origin, type) and dataclasses.is_dataclass(origin):
            return typed(origin, value)
        if origin in (list, tuple) and isinstance(value, list):
            return origin(_fitted(name, own, get_args(kind)[0]) for own in value)
        if origin is float and isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, origin) and (origin is bool or not isinstance(value, bool)):
            return value
    raise ValueError(f"{name} cannot be {reprlib.repr(value)}")


def _decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"it is not UTF-8: byte {error.start + 1} is {content[error.start]:#04x}"
        ) from None


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file completely or not at all; a link of its name is replaced, not followed."""
    partial = path.with_name(path.name + ".partial")
    try:
        # A name that is not UTF-8 has characters that UTF-8 has not.
        write_new(
            partial, content.encode(errors="replace") if isinstance(content, str) else content
        )
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        error.filename, error.filename2 = str(path), None  # a full disk has no name
        raise


def write_new(path: Path, content: bytes) -> None:
    """Write a new file, and make it durable; what has its name, as a link, is removed first."""
    path.unlink(missing_ok=True)
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def create_folder(folder: Path) -> None:
    """Make a folder and those above it; an error says which and what to do."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"Cannot create the folder {folder}: {error.strerror or error}. Name another one."
        ) from error


def user_path(text: str | Path) -> Path:
    """The path that a user wrote, where ~ is a home folder."""
    if "\0" in str(text):
        raise ValueError(f"A path has no zero bytes, got {str(text)!r}. Name another one.")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError(
            f"The home folder in {text} is unknown: there is no user {Path(text).parts[0]}. Write "
            "the path in full."
        ) from None


@contextmanager
def new_folder(folder: Path) -> Iterator[None]:
    """While entered, `folder` exists; after an error, what was created and is empty goes."""
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        create_folder(folder)
        yield
    except BaseException:
        for path in created:
            with suppress(OSError):
                path.rmdir()
        raise


@contextmanager
def filled_folder(folder: Path) -> Iterator[Path]:
    """A new folder, whose files move to `folder` in the end; an error leaves nothing behind."""
    with new_folder(folder):
        for unfinished in folder.glob(".new-*"):  # by a process that was killed
            shutil.rmtree(unfinished, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as scratch:
            try:
                yield Path(scratch)
                for file in Path(scratch).iterdir():
                    file.replace(folder / file.name)
            except OSError as error:
                if error.errno is not None:
                    error.filename, error.filename2 = str(folder), None  # a full disk has no name
                raise


def leads_out(path: Path, top: Path) -> bool:
    """Whether `path` is a link out of the folder `top`."""
    return path.is_symlink() and not path.resolve().is_relative_to(top.resolve())


def require_inside(path: Path, top: Path) -> None:
    """Raise if `path`, in which we would write, is a link out of the folder `top`."""
    if leads_out(path, top):
        raise ValueError(
            f"{path} is a link to {path.resolve()}, and nothing outside of {top} is written to. "
            "Remove the link, or move the folder here."
        )


@contextmanager
def lock(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold the lock `path`, an empty file, which the system releases when this process ends.

    If another process holds it, raises `BlockingIOError` unless it is to `wait`. On Windows, and
    where a file system has no locks, nothing is held.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINK | _NO_WAIT, 0o666)
    try:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
        yield
    finally:
        os.close(descriptor)
