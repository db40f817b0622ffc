"""Parquet is read in a process of its own, because Arrow's reader can crash on a damaged file.

That process fills the cache of Hugging Face's `datasets`: Parquet becomes Arrow's own format, which
needs no parsing, and which `load_dataset` then finds without opening a Parquet file again. A file
that crashes Arrow ends only that process, and is an error of one line.
"""

import json
import logging
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

Files = Mapping[str, Sequence[str]]


def convert(name: str, files: Files | None, cache: str) -> None:
    """Fill the cache with the data set `name`; raise `ValueError` if it cannot be read.

    The `files` are those of the data set "parquet", by split.
    """
    # -P: modules beside this file must not stand in for others.
    command = [sys.executable, "-P", __file__, json.dumps([name, files, cache])]
    shown = None if sys.stderr.isatty() else subprocess.DEVNULL  # progress; a crash may say more
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=shown, check=False)
    words = done.stdout.decode("utf-8", errors="replace").strip()
    if done.returncode < 0:
        what = signal.strsignal(-done.returncode) or f"signal {-done.returncode}"
        raise ValueError(f"a damaged file crashed its reader, Arrow ({what})")
    if done.returncode:
        raise ValueError(words or f"its reader ended with {done.returncode}")


def fill_cache(name: str, files: Files | None, cache: str) -> None:
    """What `convert` does, in this process."""
    from pyarrow.parquet import read_metadata

    for file in (file for own in (files or {}).values() for file in own):
        about = read_metadata(file)
        rows = [about.row_group(number).num_rows for number in range(about.num_row_groups)]
        # Arrow makes room for as many as the file says, and an image has at least a byte.
        size = Path(file).stat().st_size
        if sum(rows) != about.num_rows or not all(0 <= n <= size for n in rows):
            raise ValueError(f"{file} says that it has {max(rows, default=0):,} rows")
    from datasets import load_dataset

    load_dataset(name, data_files=files, cache_dir=cache)


def _main() -> int:
    for library in ("datasets", "huggingface_hub"):  # they log what they raise, and each retry
        logging.getLogger(library).setLevel(logging.CRITICAL)
    try:
        fill_cache(*json.loads(sys.argv[1]))
    except Exception as error:  # of the library, of the network, or of its readers
        cause = error.__cause__ or error  # the library wraps what its readers say
        words = " ".join(str(cause).split()) or type(cause).__name__
        sys.stdout.buffer.write(words.encode(errors="replace"))
        return 1
    except KeyboardInterrupt:  # the other process has it, too
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(_main())
