"""Copies the repository to target/planted and plants every bug of simulation/planted there.

Each bug is a patch. Its first lines state the rule that it breaks, and every line that it adds
depends on `millpond_planted::is("NAME")`, so that one build holds all bugs. The script finds a hunk
by its text alone: line numbers do not matter, and the text must occur once in the file without
bugs. Bugs may change parts of the same line, but not the same characters.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PATCHES = Path("simulation/planted")
SWITCH = PATCHES / "switch"
# Below target/, so that the copy is ignored by git and removed by `cargo clean`.
TREE = ROOT / "target/planted"
# The copy's compiled crates lie beside those of the repository, but its programs have a folder to
# themselves, because they have the same names.
BUILD = ROOT / "target"
PROGRAMS = ROOT / "target/planted-programs"


class Edit(NamedTuple):
    """Characters of a file that one bug replaces."""

    start: int
    end: int
    bug: str
    text: str


def names():
    """The names of all bugs."""
    return sorted(patch.stem for patch in (ROOT / PATCHES).glob("*.patch"))


def plant():
    """Brings target/planted up to date, and leaves unchanged files alone so that cargo does too."""
    files = {path: (ROOT / path).read_bytes() for path in tracked() if (ROOT / path).is_file()}
    patched = apply(files)
    files |= patched
    for manifest in sorted({crate_of(path, files) for path in patched}):
        files[manifest] = with_switch(manifest, files[manifest].decode()).encode()
    # Cargo names a crate's artefacts after its version and its path in the workspace. With another
    # version, those of the copy never replace those of the repository in the same target folder.
    workspace, count = re.subn(rb'(?m)^(version = "[^"]+)"$', rb'\1-planted"', files["Cargo.toml"])
    if count != 1:
        sys.exit("Cargo.toml: expected one line with the version of the workspace")
    files["Cargo.toml"] = workspace
    files[f"{SWITCH}/names"] = "".join(f"{name}\n" for name in names()).encode()
    config = f'[build]\nbuild-dir = "{BUILD}"\ntarget-dir = "{PROGRAMS}"\n'
    files[".cargo/config.toml"] = config.encode()
    write(files)


def tracked():
    """The files of the repository, as they are in the working tree, with those to be added."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return sorted(set(listed.stdout.split("\0")) - {""})


def apply(files):
    """The changed files, with the edits of all bugs. A patch that does not fit ends the script."""
    edits = {}
    for bug in names():
        for path, before, hunk in read(bug):
            if path not in files:
                refuse(bug, f"there is no file {path}")
            edits.setdefault(path, []).extend(locate(bug, path, files[path].decode(), before, hunk))
    return {path: splice(path, files[path].decode(), edits[path]).encode() for path in edits}


def read(bug):
    """The hunks of a bug's patch: the file, the text to find, and the lines with their marks."""
    lines = (ROOT / PATCHES / f"{bug}.patch").read_text().splitlines()
    if not lines or not lines[0] or lines[0].startswith(("---", "diff ")):
        refuse(bug, "it must begin with a line that states the broken rule")
    path, hunks = None, []
    for line in lines:
        if line.startswith("+++ "):
            path = line.removeprefix("+++ ").removeprefix("b/")
        elif line.startswith("@@") and path:
            hunks.append((path, []))
        elif line.startswith(("--- ", "diff ", "index ")):
            path = None
        elif path and hunks and line[:1] in ("", " ", "-", "+"):
            hunks[-1][1].append((line[:1] or " ", line[1:]))
    switches = {
        name
        for _, hunk in hunks
        for mark, line in hunk
        if mark == "+"
        for name in re.findall(r'millpond_planted::is\("([^"]*)"\)', line)
    }
    if switches != {bug}:
        refuse(
            bug, f'its added lines must depend on millpond_planted::is("{bug}"), and on no other'
        )
    return [
        (path, "".join(f"{line}\n" for mark, line in hunk if mark != "+"), hunk)
        for path, hunk in hunks
    ]


def locate(bug, path, text, before, hunk):
    """The edits of a hunk, as places in the text without bugs."""
    # A hunk begins at the beginning of a line.
    count = f"\n{text}".count(f"\n{before}")
    if count != 1:
        hint = (
            "repeat the change there and take the patch from `git diff`"
            if count == 0
            else "add lines of context (`git diff -U6`)"
        )
        refuse(bug, f"these lines occur {count} times in {path}; {hint}:\n{before}")
    place = f"\n{text}".index(f"\n{before}")
    runs = [[place, "", ""]]
    for mark, line in hunk:
        start, removed, added = runs[-1]
        if mark == " ":
            runs.append([start + len(removed) + len(line) + 1, "", ""])
        elif mark == "-":
            runs[-1][1] = f"{removed}{line}\n"
        else:
            runs[-1][2] = f"{added}{line}\n"
    return [trimmed(bug, *run) for run in runs if run[1] != run[2]]


def trimmed(bug, start, removed, added):
    """An edit without the characters that it keeps at both ends."""
    shorter = min(len(removed), len(added))
    head = 0
    while head < shorter and removed[head] == added[head]:
        head += 1
    tail = 0
    while tail < shorter - head and removed[-1 - tail] == added[-1 - tail]:
        tail += 1
    return Edit(start + head, start + len(removed) - tail, bug, added[head : len(added) - tail])


def splice(path, text, edits):
    """The text with all edits. Insertions at the same place follow in the order of their names."""
    result, place, last = [], 0, None
    for edit in sorted(edits):
        if edit.start < place:
            line = text.count("\n", 0, edit.start) + 1
            refuse(edit.bug, f"it changes what {last} changes too, in line {line} of {path}")
        result += [text[place : edit.start], edit.text]
        place, last = edit.end, edit.bug
    return "".join([*result, text[place:]])


def crate_of(path, files):
    """The manifest of the crate that has this file."""
    folders = map(str, Path(path).parents)
    return next(f"{folder}/Cargo.toml" for folder in folders if f"{folder}/Cargo.toml" in files)


def with_switch(manifest, text):
    """A crate's manifest with a dependency on the switch."""
    up = "/".join([".."] * len(Path(manifest).parent.parts))
    dependency = f'millpond-planted = {{ path = "{up}/{SWITCH}" }}\n'
    before, section, after = text.partition("\n[dependencies]\n")
    if not section:
        sys.exit(f"{manifest}: a planted bug needs a section [dependencies]")
    return f"{before}{section}{dependency}{after}"


def write(files):
    """Makes target/planted exactly these files."""
    for old in sorted(TREE.rglob("*"), reverse=True):
        if old.is_dir() and not old.is_symlink():
            if not any(old.iterdir()):
                old.rmdir()
        elif str(old.relative_to(TREE)) not in files:
            old.unlink()
    for path, content in files.items():
        copy = TREE / path
        if not copy.is_file() or copy.read_bytes() != content:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)
        if (ROOT / path).is_file():
            copy.chmod((ROOT / path).stat().st_mode)


def refuse(bug, reason):
    """Ends the script because of a bug's patch."""
    sys.exit(f"{PATCHES}/{bug}.patch cannot be applied: {reason}")
