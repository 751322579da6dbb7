"""A checkpoint is a folder: one state file per part, and a manifest with the size and SHA-256 of each file."""

# It is written under a hidden name (see `atomic_write`), flushed to disk, and renamed into place: a folder with a
# manifest is complete. The rows of a run's buffers are in files beside its checkpoints; the manifest lists them too.

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import stat
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from rltrainer.data.buffer_state import RowFile
from rltrainer.errors import CheckpointError
from rltrainer.files.atomic_write import (
    hidden_name,
    hidden_names,
    is_running,
    make_folder,
    remove,
    remove_abandoned,
    sync_folder,
    write_errors,
)
from rltrainer.files.json_text import read_json
from rltrainer.files.regular_file import neighbours_hint, open_regular, read_text
from rltrainer.ranks.ranks import ALONE, Ranks
from rltrainer.state.codec import from_state
from rltrainer.state.state_file import PackedState, pack_state, read_state, refuse_version
from rltrainer.types import State
from rltrainer.validation.field_rules import NonNegativeInt, PositiveInt, Rule

MANIFEST = "manifest.json"
# 3: rows of buffers in files that are named by their numbers.
FORMAT_VERSION = 3
# Bytes that a manifest may have in any case, and for each file that is there: it is read in proportion to them.
FREE_SIZE, ENTRY_SIZE = 1 << 20, 1000
# The folder beside a run's checkpoints for the rows of its buffers, the kind of a file in it, the key in a state.
ROWS = "rows"
ROW_FILE = re.compile(r"\w+-\d+-\d+(?:-\d+)?\.safetensors", re.ASCII)
_MEMBER = re.compile(r"(?:shard([1-9]\d*)_)?(\w[\w.-]*)\.safetensors", re.ASCII)

MemberName = Annotated[str, Rule("the name of a part's file", lambda v: bool(_MEMBER.fullmatch(v)))]
RowFileName = Annotated[str, Rule("the name of a file of rows", lambda v: bool(ROW_FILE.fullmatch(v)))]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Size and SHA-256 of a file."""

    size: NonNegativeInt
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The files of a checkpoint, and its place among the run's checkpoints."""

    files: dict[MemberName, FileEntry]
    """Files in the checkpoint's folder."""
    rows: dict[str, dict[RowFileName, FileEntry]] = field(default_factory=dict)
    """Files of a buffer's rows in order, by part; the checkpoints of a run share them."""
    serial: NonNegativeInt = 0
    """Number of checkpoints that the run saved before; the newest has the highest."""
    step: NonNegativeInt | None = None
    score: float | None = None
    num_shards: PositiveInt = 1

    def parts(self, shard: int) -> dict[str, str]:
        """Return the file of each part of a shard by the part's name; the second shard's files start with `shard1_`."""
        found = filter(None, map(_MEMBER.fullmatch, self.files))
        return {match[2]: match[0] for match in found if (match[1] or "0") == str(shard)}

    @property
    def row_files(self) -> dict[str, FileEntry]:
        """The files of rows of all parts."""
        return {name: entry for entries in self.rows.values() for name, entry in entries.items()}

    def problem(self) -> str | None:
        """Return a contradiction between the fields, or None."""
        if self.score is not None and self.score != self.score:
            return "score: NaN is never saved"
        unknown = [part for part in self.rows if f"{part}.safetensors" not in self.files]
        return f"rows: there is no part {unknown[0]!r}" if unknown else None


def write_checkpoint(path: str | Path, parts: dict[str, State], overwrite: bool = False, ranks: Ranks = ALONE) -> None:
    """Write a checkpoint that stands alone.

    Args:
        path: the folder.
        parts: the state of each part.
        overwrite: whether it replaces a checkpoint or an empty folder; nothing else is ever replaced.
        ranks: of the run; all make the same call, each with its own parts.

    Raises:
        CheckpointError: `path` exists, is something else, or could not be written; what was there is still there.
    """
    path = absolute_path(path)
    temporary, previous = (Path(ranks.from_first(str(hidden_name(path, suffix)))) for suffix in ("new", "old"))
    errors = write_errors(path, CheckpointError)

    def begin() -> None:
        make_folder(path.parent)
        # A kill between the two renames of an earlier save left the old checkpoint under its hidden name.
        _recover(path)
        if os.path.lexists(path):
            _check_replaceable(path, overwrite)
        remove_abandoned(path, "new")
        temporary.mkdir()

    def write() -> State:
        prefix = f"shard{ranks.rank}_" if ranks.rank else ""
        packed = {prefix + name: pack_state(name, state) for name, state in parts.items()}
        return asdict(Manifest(files=write_parts(temporary, packed)))

    def commit() -> None:
        write_manifest(temporary, shards)
        try:
            if overwrite and os.path.lexists(path):
                os.replace(path, previous)
            os.replace(temporary, path)
            # The old one goes when the new name is flushed: a machine that loses its power keeps one of the two.
            sync_folder(path.parent)
            remove(previous)
        except BaseException:
            if os.path.lexists(previous) and not os.path.lexists(path):
                with contextlib.suppress(OSError):
                    os.replace(previous, path)
            raise
        remove_abandoned(path, "old")

    try:
        on_first(ranks, errors(begin))
        shards = ranks.attempt(errors(write), CheckpointError)
        on_first(ranks, errors(commit))
    finally:
        ranks.once(remove, temporary)  # another rank that was interrupted would take files away before the rename


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that `open_checkpoint` has opened: every file was compared with the manifest."""

    path: Path
    manifest: Manifest

    def states(self, shard: int = 0, mapped: Collection[str] = (), world: int | None = None) -> dict[str, State]:
        """Read the state of each part of a shard.

        Args:
            shard: its number.
            mapped: the parts that leave their tensors in their files, for a caller that copies them at once.
            world: of a run that continues, its number of shards; rows from a file of the run then have that as "file".

        Raises:
            CheckpointError: there is no such shard, there are more or fewer than `world`, or a file holds another part.
        """
        path, num_shards, states = self.path, self.manifest.num_shards, dict[str, State]()
        if shard >= num_shards or world not in (None, num_shards):
            rest = f", and has no shard {shard}" if world is None else f", and this one has {world}"
            hint = f"Pass RuntimeParams(parallel=ParallelParams(num_shards={num_shards}))."
            raise CheckpointError(f"{path}: was saved by a run of {num_shards} shards{rest}. {hint}")
        for part, file in ((part, path / name) for part, name in self.manifest.parts(shard).items()):
            states[part] = read_state(file, part, CheckpointError, part in mapped, is_checked=True)
            if file.stem not in self.manifest.rows:
                continue
            newest, logged = states[part].get(ROWS), []
            if not isinstance(newest, list):
                raise CheckpointError(f"{file}: expected a list of rows, found none")
            for name, entry in self.manifest.rows[file.stem].items():
                rows = read_state(rows_folder(path) / name, ROWS, CheckpointError, part in mapped, is_checked=True)
                known = {} if world is None else {"file": RowFile(name, entry.size, entry.sha256)}
                logged.append(rows | known)
            states[part][ROWS] = logged + newest
        return states


class KnownFiles:
    """The files of checkpoints that were read: each is read once, and again only if it has changed."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[Any, Any]] = {}

    def manifest(self, path: Path) -> Manifest:
        """Return the manifest of a checkpoint; for errors see `open_checkpoint`."""
        with reading(path, "the checkpoint "):
            _recover(path)
            found: Manifest = self._once(path / MANIFEST, None, lambda: read_manifest(path))
            return found

    def check(self, file: Path, entry: FileEntry) -> None:
        """Compare a file with its entry; for errors see `check_member`."""
        self._once(file, entry, lambda: check_member(file, entry))

    def written(self, file: Path, entry: FileEntry) -> None:
        """Note a new file, which is as it was written."""
        self._known[file] = (_stamp(file), entry), None

    def removed(self, file: Path) -> None:
        """Forget a file."""
        self._known.pop(file, None)

    def _once(self, file: Path, entry: FileEntry | None, read: Callable[[], Any]) -> Any:
        state = _stamp(file), entry
        before, found = self._known.get(file, (None, None))
        if before != state or state[0] is None:
            try:
                found = read()
            except CheckpointError as error:
                found = error
            self._known[file] = state, found
        if isinstance(found, CheckpointError):
            raise CheckpointError(str(found))
        return found


def open_checkpoint(path: str | os.PathLike[str], ranks: Ranks = ALONE, known: KnownFiles | None = None) -> Checkpoint:
    """Read the manifest of a checkpoint, and compare every file with it, each once.

    Args:
        path: the folder.
        ranks: of the run; all make the same call, and each compares the files of its shards.
        known: what this rank has read already.

    Raises:
        CheckpointError: the folder, the manifest or a file is missing, damaged or foreign; it is named.
    """
    path, known = absolute_path(path), known or KnownFiles()
    manifest = from_state(Manifest, on_first(ranks, lambda: asdict(known.manifest(path))), "manifest")
    for problem in filter(None, ranks.attempt(lambda: _problem(path, manifest, ranks, known), CheckpointError)):
        raise CheckpointError(problem)
    return Checkpoint(path, manifest)


def _problem(path: Path, manifest: Manifest, ranks: Ranks, known: KnownFiles) -> str | None:
    """Compare the files of this rank's shards with the manifest; return what is wrong with the first, or None."""
    try:
        with reading(path, "the checkpoint "):
            found = set(os.listdir(path)) - {MANIFEST}
            for name in sorted(found ^ set(manifest.files)):
                raise CheckpointError(f"{path / name}: {'not in the manifest' if name in found else 'missing'}")
            for shard in range(ranks.rank, manifest.num_shards, ranks.world):
                for file in (path / name for name in manifest.parts(shard).values()):
                    known.check(file, manifest.files[file.name])
                    for name, entry in manifest.rows.get(file.stem, {}).items():
                        _check_rows(rows_folder(path) / name, entry, known)
    except CheckpointError as error:
        return str(error)
    return None


def _check_rows(file: Path, entry: FileEntry, known: KnownFiles) -> None:
    if not os.path.lexists(file):
        hint = f"The checkpoints of a run need the folder {ROWS!r} beside them; copy it with them"
        raise CheckpointError(f"{file}: missing. {hint}, or save one that stands alone by trainer.save.")
    known.check(file, entry)


def read_checkpoint(path: str | Path, mapped: Collection[str] = (), shard: int = 0) -> dict[str, State]:
    """Read the state of each part of a shard, after checking every file against the manifest.

    Args:
        path: the folder.
        mapped: the parts that leave their tensors in their files, for a caller that copies them at once.
        shard: its number.

    Raises:
        CheckpointError: the folder, the manifest, a file or the shard is missing, damaged or foreign; it is named.
    """
    return open_checkpoint(path).states(shard, mapped)


def rows_folder(path: Path) -> Path:
    """Return the folder with the rows of a run's checkpoint: beside the checkpoint, not beside a link to it."""
    return Path(os.path.realpath(path)).parent / ROWS


def on_first(ranks: Ranks, act: Callable[[], Any]) -> Any:
    """Call a function on the first rank alone, and return its plain value on all; or raise `CheckpointError`."""
    return ranks.attempt(partial(ranks.once, act), CheckpointError)[0]


def write_parts(folder: Path, parts: dict[str, PackedState]) -> dict[str, FileEntry]:
    """Write one file per part, flushed to disk."""
    return {f"{name}.safetensors": write_member(folder / f"{name}.safetensors", parts[name]) for name in parts}


def write_manifest(folder: Path, shards: list[State], **fields: Any) -> Manifest:
    """Write the manifest of all shards, from the plain one of each, flushed with the folder's names; return it."""
    files, rows = ({name: it for shard in shards for name, it in shard[key].items()} for key in ("files", "rows"))
    manifest = from_state(Manifest, {"files": files, "rows": rows, "num_shards": len(shards), **fields}, "it")
    plain = {"rltrainer": "checkpoint", "version": FORMAT_VERSION, **asdict(manifest)}
    if manifest.num_shards == 1:
        del plain["num_shards"]  # earlier versions refuse a field that they do not know
    with open(folder / MANIFEST, "x") as stream:
        stream.write(json.dumps(plain | {"checksum": _checksum(plain)}, indent=1))
        stream.flush()
        os.fsync(stream.fileno())
    sync_folder(folder)
    return manifest


def write_member(file: Path, state: PackedState) -> FileEntry:
    """Write a new file, flushed to disk."""
    with open(file, "xb") as stream:
        checksum = state.write(stream)
        size = stream.tell()
        stream.flush()
        os.fsync(stream.fileno())
    return FileEntry(size, checksum)


def check_member(file: Path, expected: FileEntry) -> None:
    """Raise a `CheckpointError` if a file is missing, no regular file, or not of its size and checksum."""
    with _open_member(file) as stream:
        # Size first: it costs nothing, and finds a file that was cut.
        size = os.fstat(stream.fileno()).st_size
        if size != expected.size:
            raise CheckpointError(f"{file}: expected {expected.size} bytes, found {size}")
        found = hashlib.file_digest(stream, "sha256")  # type: ignore[arg-type]  # what `open` returns has readinto
        if found.hexdigest() != expected.sha256:
            raise CheckpointError(f"{file}: its contents changed after it was written (SHA-256 differs)")


def read_manifest(folder: Path) -> Manifest:
    """Read a manifest; a `CheckpointError` if there is none, or if it is damaged, foreign or of another format."""
    file = folder / MANIFEST
    try:
        with _open_member(file) as stream:
            text = read_text(stream)
    except CheckpointError:
        no_such = f"there is no such checkpoint{neighbours_hint(folder)}"
        problem = "is no checkpoint: it has no manifest" if folder.is_dir() else no_such
        raise CheckpointError(f"{folder}: {problem}") from None
    if len(text) > FREE_SIZE:
        num_files = sum(len(os.listdir(each)) for each in (folder, rows_folder(folder)) if each.is_dir())
        limit = FREE_SIZE + ENTRY_SIZE * num_files
        if len(text) > limit:
            problem = f"expected at most {limit:,} bytes for the {num_files} files there, found {len(text):,}"
            raise CheckpointError(f"{file}: damaged: {problem}")
    try:
        plain = read_json(text, allows_nan=True)
        version = plain["version"]
        is_ours = plain["rltrainer"] == "checkpoint" and type(version) is int and version > 0
        if is_ours and version == FORMAT_VERSION:
            # Checked before the fields: serial and score decide which checkpoint is the newest, and the best.
            if plain.pop("checksum") != _checksum(plain):
                raise ValueError("its contents changed after it was written (SHA-256 differs)")
            return from_state(Manifest, {key: plain[key] for key in plain if key not in ("rltrainer", "version")}, "it")
    except (KeyError, TypeError, AttributeError, ValueError, CheckpointError) as error:
        raise CheckpointError(f"{file}: damaged ({type(error).__name__}: {error})") from error
    if is_ours:
        refuse_version(file, version, FORMAT_VERSION, CheckpointError)
    raise CheckpointError(f"{file}: not a manifest of rltrainer")


def absolute_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a checkpoint, which need not exist; a `CheckpointError` if it has no name."""
    if Path(path).name in ("", ".."):
        raise CheckpointError(f"{path}: must end in the name of a checkpoint")
    return Path(os.path.abspath(path))


@contextlib.contextmanager
def reading(path: Path, what: str = "") -> Any:
    """Raise an `OSError` of a read as a `CheckpointError`, which may say what could not be read at the path."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path}: {what}could not be read ({error})") from error


def _stamp(file: Path) -> Any:
    """Return what changes with a file, or None if it cannot be told."""
    with contextlib.suppress(OSError):
        found = os.lstat(file)
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    return None


def _open_member(file: Path) -> BinaryIO:
    """Open a file that is no link, pipe or device: their contents are somewhere else or never come."""
    try:
        return open_regular(file, follows_links=False)
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{file}: missing") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.EISDIR):  # link, pipe, device, socket, folder
            raise CheckpointError(f"{file}: is no regular file") from None
        raise


def _checksum(plain: dict[str, Any]) -> str:
    """Return the SHA-256 of a manifest: its serial, step and score are in no other file."""
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()


def _check_replaceable(path: Path, overwrite: bool) -> None:
    """Raise a `CheckpointError` if a save would replace anything but a checkpoint, or one without being asked to."""
    if not overwrite:
        raise CheckpointError(f"{path}: exists, and is not replaced. Save to another path, or with overwrite=True.")
    problem = "is a symbolic link" if path.is_symlink() else "" if path.is_dir() else "is no folder"
    names = [] if problem else os.listdir(path)
    if names and MANIFEST not in names:
        problem = "is no checkpoint"
    if problem:
        raise CheckpointError(f"{path}: {problem}, and only a checkpoint is replaced. Save to another path.")
    known = {MANIFEST, *read_manifest(path).files} if names else set()
    foreign = [name for name in names if name not in known or not stat.S_ISREG(os.lstat(path / name).st_mode)]
    if foreign:
        text = f"{path}: holds {min(foreign)!r} beside a checkpoint, and would be replaced as a whole"
        raise CheckpointError(f"{text}. Move it away, or save to another path.")


def _recover(path: Path) -> None:
    """Put back the checkpoint that a killed save had moved away; one of a running save is left alone."""
    if os.path.lexists(path):
        return
    left = dict[Path, float]()
    for old in [old for old, owner in hidden_names(path, "old") if not is_running(owner)]:
        with contextlib.suppress(OSError, CheckpointError):
            if all(os.lstat(old / name).st_size == entry.size for name, entry in read_manifest(old).files.items()):
                left[old] = (old / MANIFEST).stat().st_mtime
    if left:
        newest = max(left, key=left.__getitem__)
        try:
            os.replace(newest, path)
        except OSError as error:  # another process was quicker
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise
            return
        logging.getLogger("rltrainer").warning("%s: put back from %s, where a killed save left it", path, newest.name)
