"""The patches of the planted bugs (`scripts/planting.py`): which fit, and what a misfit says."""

import sys

import pytest

from harness.services import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "scripts"))
import planting  # noqa: E402

SOURCE = "a/src/lib.rs"
TEXT = """fn first() {
    if held && ours {
        send();
    }
}

fn second() {
    send();
}
"""


@pytest.fixture(autouse=True)
def patches(tmp_path, monkeypatch):
    """An empty folder of patches."""
    monkeypatch.setattr(planting, "ROOT", tmp_path)
    folder = tmp_path / planting.PATCHES
    folder.mkdir(parents=True)
    return folder


def write(folder, bug, *hunks, rule="The rule."):
    hunks = "".join(f"@@ -1 +1 @@\n{hunk}" for hunk in hunks)
    (folder / f"{bug}.patch").write_text(
        f"{rule}\n\ndiff --git a/x b/x\nindex 1..2 100644\n--- a/{SOURCE}\n+++ b/{SOURCE}\n{hunks}"
    )


def planted():
    return planting.apply({SOURCE: TEXT.encode()})[SOURCE].decode()


def refusal():
    with pytest.raises(SystemExit) as refused:
        planted()
    return str(refused.value)


def test_bugs_change_parts_of_the_same_line(patches):
    held = '(held || millpond_planted::is("a"))'
    ours = '(ours || millpond_planted::is("b"))'
    write(patches, "a", f"-    if held && ours {{\n+    if {held} && ours {{\n")
    write(patches, "b", f"-    if held && ours {{\n+    if held && {ours} {{\n         send();\n")
    assert planted() == TEXT.replace("held && ours", f"{held} && {ours}")


def test_insertions_at_the_same_place_follow_in_the_order_of_their_names(patches):
    for bug in "ba":
        line = f'    millpond_planted::is("{bug}");'
        write(patches, bug, f" fn second() {{\n+{line}\n")
    first, second = (f'    millpond_planted::is("{bug}");\n' for bug in "ab")
    assert planted() == TEXT.replace("fn second() {\n", f"fn second() {{\n{first}{second}")


def test_bugs_that_change_the_same_characters_are_refused(patches):
    for bug in "ab":
        line = f'    if millpond_planted::is("{bug}") {{'
        write(patches, bug, f"-    if held && ours {{\n+{line}\n")
    refused = refusal()
    assert "b.patch cannot be applied: it changes what a changes too" in refused
    assert f"line 2 of {SOURCE}" in refused


@pytest.mark.parametrize(
    ("hunk", "reason"),
    [
        (" fn third() {\n", "occur 0 times"),
        # Part of a line is no match.
        (" send();\n", "occur 0 times"),
        (" }\n", "occur 2 times"),
    ],
)
def test_text_that_does_not_occur_once_is_refused(patches, hunk, reason):
    write(patches, "a", f'{hunk}+millpond_planted::is("a");\n')
    assert f"a.patch cannot be applied: these lines {reason} in {SOURCE}" in refusal()


@pytest.mark.parametrize("added", ["return;", 'millpond_planted::is("b");'])
def test_a_bug_without_its_switch_is_refused(patches, added):
    write(patches, "a", f" fn second() {{\n+{added}\n")
    assert 'must depend on millpond_planted::is("a"), and on no other' in refusal()


def test_a_patch_that_does_not_state_its_rule_is_refused(patches):
    write(patches, "a", rule="")
    assert "a.patch cannot be applied: it must begin with a line" in refusal()
