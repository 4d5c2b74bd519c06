"""What py-rattler says about channels, told as one error each."""

import pytest

from provisioner.conda import failures
from provisioner.conda.channel import channels_of

CHANNELS = channels_of(
    ["conda-forge", "https://own.corp/chan"],
    {"PROVISION_MIRROR_CONDA": "http://127.0.0.1:9/m"},
)
MIRROR = "http://127.0.0.1:9/m/conda-forge/noarch/repodata.json"


@pytest.mark.parametrize(
    ("text", "code", "channel"),
    [
        (
            (f"error sending request for url ({MIRROR})\nCaused by: client error (Connect)\n"
            "Caused by: tcp connect error\nCaused by: Connection refused (os error 111)"),
            "conda.channel-unreachable",
            "conda-forge",
        ),
        (
            ("error sending request for url (https://own.corp/chan/noarch/repodata.json)\n"
            "Caused by: dns error\nCaused by: failed to lookup address information"),
            "conda.channel-unreachable",
            "https://own.corp/chan",
        ),
        (f"HTTP status client error (401 Unauthorized) for url ({MIRROR})", "conda.channel-denied",
         "conda-forge"),
        (f"HTTP status client error (403 Forbidden) for url ({MIRROR})", "conda.channel-denied",
         "conda-forge"),
        (
            "could not find subdir 'noarch' in channel 'https://own.corp/chan/'",
            "conda.channel-missing",
            "https://own.corp/chan",
        ),
        (f"HTTP status server error (503 Service Unavailable) for url ({MIRROR})",
         "conda.channel-unreachable", "conda-forge"),
        (
            (f"error sending request for url ({MIRROR})\nCaused by: invalid peer certificate: "
            "UnknownIssuer"),
            "conda.channel-tls",
            "conda-forge",
        ),
        ("failed to parse repodata.json\nCaused by: expected value at line 1 column 1",
         "conda.channel-broken", "a channel"),
    ],
)  # fmt: skip
def test_each_kind_of_failure_has_its_code(text: str, code: str, channel: str) -> None:
    error = failures.of_gateway(text, CHANNELS)
    assert (error.code, error.facts["channel"]) == (code, channel)
    assert error.next_step
    assert error.facts["reason"] in text


def test_no_solution_names_what_clashes() -> None:
    text = "Cannot solve the request because of: numpy <2 cannot be installed\n└─ tree"
    error = failures.unsatisfiable(text, ["python 3.14.*", "numpy <2"], "linux-64", CHANNELS)
    assert error.code == "conda.unsatisfiable"
    assert "python 3.14.*, numpy <2" in error.message
    assert error.facts["solver"] == "numpy <2 cannot be installed\n└─ tree"
    assert int(error.exit_status) == 1
