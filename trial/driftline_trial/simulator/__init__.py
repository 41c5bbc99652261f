"""A local server that speaks the Messages API and rates by simple rules: everything around a judge, without a key or a cost."""

from driftline_trial.simulator.server import RunningJudge, running

__all__ = ["RunningJudge", "running"]
