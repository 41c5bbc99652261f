"""Inputs of evaluation commands: cases from files and folders, and the judge runs of a profile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from audit.diagnosis.diagnosis import LOWEST_TRUST
from audit.evaluation.cases import Case, LoadedProfile, Plan, TrustAtLeast, load_case, plans
from schemas.errors import InputError, SettingsError
from service.cli.evaluations.gate import never_fails
from service.write.import_files import files_below

CASE_FILES = ("*.yaml", "*.yml")
"""File names of cases in a folder."""


def load_cases(paths: Sequence[Path]) -> list[Case]:
    """Load cases from files and folders in the order of names; InputError if two have one id or there is none."""
    files = [file for path in paths for file in (files_below(path, CASE_FILES) if path.is_dir() else [path])]
    found: dict[str, Path] = {}
    cases = []
    for file in dict.fromkeys(files):
        case = load_case(file)
        if case.case_id in found:
            raise InputError(
                f"{file}: case_id: {case.case_id} is the id of {found[case.case_id]}, too",
                hint="Give each case its own id.",
            )
        found[case.case_id] = file
        cases.append(case)
    return cases


def warnings_of(cases: Sequence[Case]) -> list[str]:
    """Return a sentence for each check of the cases that no run can fail."""
    return [
        f"case {case.case_id}: {never_fails('trust_at_least', check.trust)}"
        for case in cases
        for check in case.deterministic_checks
        if isinstance(check, TrustAtLeast) and check.trust <= LOWEST_TRUST
    ]


def chosen_plans(loaded: LoadedProfile, judge_runs: Sequence[str] | None, profile: Path) -> list[Plan]:
    """Return the requested judge runs; SettingsError names the ones in the profile."""
    every = {plan.judge_run_id: plan for plan in plans(loaded.profile)}
    for name in judge_runs or ():
        if name not in every:
            raise SettingsError(f"--judge-run {name}: {profile} has no such judge run", hint=f"It has {', '.join(every)}.")
    return [every[name] for name in dict.fromkeys(judge_runs or every)]
