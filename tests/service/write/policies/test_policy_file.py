"""The policy file: checked against its folder, replaced in one step, the text before kept, nothing overwritten unseen."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from audit.policy import Policy
from service.write.policy_file import (
    SKELETON,
    PolicyFile,
    PolicyProblem,
    ReadOnlyError,
    StaleError,
    check_text,
    diff_lines,
    fingerprint,
)

METHODOLOGY = "schemaVersion: '1'\ntier2: [{id: sources, description: It names its sources.}]\n"


@pytest.fixture
def file(tmp_path: Path) -> PolicyFile:
    """A policy file in a separate folder."""
    path = tmp_path / "policies" / "policy.yaml"
    path.parent.mkdir()
    path.write_text(SKELETON, "utf-8")
    return PolicyFile(path)


def texts(file: PolicyFile) -> tuple[str, str | None]:
    """Return the present and the previous text of the file."""
    return file.text(), file.previous()


def test_a_save_keeps_the_previous_text_and_can_be_undone(file: PolicyFile) -> None:
    """The previous text is kept, so that a wrong policy can be undone."""
    file.save("version: 1 # b\n", fingerprint(SKELETON))
    assert texts(file) == ("version: 1 # b\n", SKELETON)
    file.save(str(file.previous()), fingerprint("version: 1 # b\n"))
    assert texts(file) == (SKELETON, "version: 1 # b\n")


def test_a_change_by_another_process_is_not_overwritten(file: PolicyFile) -> None:
    """Two people may edit the policy on the page or on the server."""
    assert file.path
    file.path.write_text("version: 1 # theirs\n", "utf-8")
    with pytest.raises(StaleError, match="has changed"):
        file.save("version: 1 # mine\n", fingerprint(SKELETON))
    assert texts(file) == ("version: 1 # theirs\n", None)


def test_a_save_keeps_permissions_and_leaves_no_file_behind(file: PolicyFile) -> None:
    """Permissions are kept, and no partial copy is left behind."""
    assert file.path
    file.path.chmod(0o640)
    file.save("version: 1 # b\n", fingerprint(SKELETON))
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o640
    assert sorted(one.name for one in file.path.parent.iterdir()) == ["policy.yaml", "policy.yaml.previous"]


def test_a_link_stays_a_link(file: PolicyFile, tmp_path: Path) -> None:
    """Saving through a symbolic link must change the target, not replace the link."""
    assert file.path
    link = tmp_path / "linked.yaml"
    link.symlink_to(file.path)
    PolicyFile(link).save("version: 1 # b\n", fingerprint(SKELETON))
    assert link.is_symlink()
    assert texts(file) == ("version: 1 # b\n", SKELETON)


def test_an_unwritable_file_gives_the_reason(file: PolicyFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Kubernetes the file may be a read-only ConfigMap, which the page reports before the user edits."""
    assert "DRIFTLINE_POLICY" in PolicyFile(None).why_read_only()
    assert "does not exist" in PolicyFile(Path("nowhere.yaml")).why_read_only()
    assert file.why_read_only() == ""
    monkeypatch.setattr("service.write.policy_file.os.access", lambda *_: False)
    assert "ConfigMap" in file.why_read_only()
    with pytest.raises(ReadOnlyError, match="read-only"):
        file.save("version: 1 # b\n", fingerprint(SKELETON))
    assert texts(file) == (SKELETON, None)


def test_a_full_disk_changes_nothing(file: PolicyFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old text stays complete, and no partial file remains."""

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("service.write.policy_file.os.fsync", full)
    with pytest.raises(ReadOnlyError, match="No space left"):
        file.save("version: 1 # b\n", fingerprint(SKELETON))
    assert file.path
    assert file.text() == SKELETON
    assert [one.name for one in file.path.parent.iterdir()] == ["policy.yaml"]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("version: 1\ndefaults:\n  retentionDay: 3\n", 3, "did you mean retentionDays?"),
        ("version: 1\ndefaults: {retentionDays: 0}\n", 2, "defaults.retentionDays"),
        ("", 1, "the file is empty"),
        ("version: 1\n\tprojects: {}\n", 2, "document"),
        ("version: 1\ndefaults: {methodology: gone.yaml}\n", 2, "does not exist"),
        ("version: 1\ndefaults: {methodology: ../outside.yaml}\n", 2, "in the folder of the policy"),
        ("version: 1\ndefaults: {methodology: /etc/passwd.yaml}\n", 2, "in the folder of the policy"),
        ('version: 1\ndefaults: {methodology: "a\\0.yaml"}\n', 2, "in the folder of the policy"),
        ("version: 1\ndefaults: {enabled: \ud800}\n", None, "surrogate"),
    ],
)
def test_a_problem_has_its_line(file: PolicyFile, tmp_path: Path, text: str, line: int | None, words: str) -> None:
    """Problems must have line numbers, and methodology files outside the folder must not be read."""
    (tmp_path / "outside.yaml").write_text(METHODOLOGY, "utf-8")
    problems = check_text(file, text, ())
    assert isinstance(problems, list)
    assert problems[0].line == line
    assert words in problems[0].problem
    assert str(tmp_path) not in problems[0].problem.replace(str(tmp_path / "policies" / "gone.yaml"), "")


def test_all_problems_are_reported_in_the_order_of_lines(file: PolicyFile) -> None:
    """One problem per attempt would be tedious."""
    problems = check_text(file, "version: 1\ndefaults:\n  enabled: maybe\nprojects:\n  Ops: {}\n", ())
    assert [one.line for one in problems if isinstance(one, PolicyProblem)] == [3, 5]


def test_a_methodology_that_is_already_referenced_may_stay(file: PolicyFile, tmp_path: Path) -> None:
    """A methodology that the file already refers to may be anywhere, and the page can still save the policy."""
    (tmp_path / "outside.yaml").write_text(METHODOLOGY, "utf-8")
    text = "version: 1\ndefaults: {methodology: ../outside.yaml}\n"
    assert isinstance(check_text(file, text, {"../outside.yaml"}), Policy)


def test_a_comparison_shows_changed_lines_or_nothing() -> None:
    """The page shows a save as a list of changes."""
    assert diff_lines("version: 1 # a\n", "version: 1\ndefaults: {}\n") == [
        "@@ -1 +1,2 @@",
        "-version: 1 # a",
        "+version: 1",
        "+defaults: {}",
    ]
    assert diff_lines(SKELETON, SKELETON) == []
