"""The probe on a torch older than torch.compile: eager only, where the cell says so."""

import json

from torch_env import TorchEnv


def test_eager_as_declared(eager_torch: TorchEnv) -> None:
    outcome = eager_torch.probe("--expect", json.dumps(eager_torch.build.promise))
    assert (outcome.report["verdict"], outcome.code) == ("eager-as-declared", 3)
    assert outcome.report["torch"] == eager_torch.build.local
    assert outcome.check("numerics")["status"] == "pass"
    assert outcome.report["artefacts"] == {}


def test_a_cell_that_promises_compilation(eager_torch: TorchEnv) -> None:
    promise = eager_torch.build.promise | {"compile": True}
    outcome = eager_torch.probe("--expect", json.dumps(promise))
    assert (outcome.report["verdict"], outcome.decided) == ("failed", "has-compile")
    assert "the cell promises compilation" in " ".join(outcome.stdout.split())


def test_nothing_declares_it(eager_torch: TorchEnv) -> None:
    """Without a cell there is no promise to break; it is no pass either."""
    outcome = eager_torch.probe()
    assert (outcome.report["verdict"], outcome.code) == ("unjudged", 3)
    assert outcome.decided == "has-compile"
