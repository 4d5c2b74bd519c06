"""Names, addresses and secrets of conda channels."""

import base64

import pytest

from provisioner.conda.channel import (
    CANONICAL,
    Channel,
    channels_of,
    headers_for,
    parse_map,
    redacted,
)
from provisioner.errors import UsageError


def one(name: str, **environ: str) -> Channel:
    (channel,) = channels_of([name], environ)
    return channel


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("name", "environ", "url", "read_from", "mirrored"),
    [
        ("conda-forge", {}, f"{CANONICAL}/conda-forge", f"{CANONICAL}/conda-forge", False),
        (
            "conda-forge",
            {"PROVISION_MIRROR_CONDA": "https://mirror.corp/conda/"},
            f"{CANONICAL}/conda-forge",
            "https://mirror.corp/conda/conda-forge",
            True,
        ),
        (
            "conda-forge",
            {"PROVISION_CONDA_CHANNEL_MAP": "other=http://x/y conda-forge=file:///srv/cf/"},
            f"{CANONICAL}/conda-forge",
            "file:///srv/cf",
            False,
        ),
        (
            "conda-forge",
            {"PROVISION_CONDA_CHANNEL_MAP": "conda-forge=http://10.0.0.1/cf"},
            f"{CANONICAL}/conda-forge",
            "http://10.0.0.1/cf",
            True,
        ),
        (
            "https://own.corp/chan/",
            {"PROVISION_MIRROR_CONDA": "https://mirror.corp"},
            "https://own.corp/chan",
            "https://own.corp/chan",
            False,
        ),
        ("/srv/channel", {}, "file:///srv/channel", "file:///srv/channel", False),
    ],
)
def test_a_lock_holds_the_real_address_wherever_the_bits_are_read(
    name: str, environ: dict[str, str], url: str, read_from: str, mirrored: bool
) -> None:
    channel = one(name, **environ)
    assert (channel.url, channel.read_from, channel.mirrored) == (url, read_from, mirrored)


def test_addresses_of_records_are_told_as_of_the_real_channel() -> None:
    channel = one("conda-forge", PROVISION_CONDA_CHANNEL_MAP="conda-forge=file:///srv/cf")
    real = f"{CANONICAL}/conda-forge/linux-64/zlib-1-0.conda"
    assert channel.public("file:///srv/cf/linux-64/zlib-1-0.conda") == real
    assert channel.public(real) == real
    assert channel.public("https://elsewhere/linux-64/a-1-0.conda").startswith("https://elsewhere")


@pytest.mark.parametrize(
    ("name", "environ", "header"),
    [
        ("https://user:p%40ss@own.corp/c", {}, basic("user", "p@ss")),
        ("https://own.corp/c", {"PROVISION_CONDA_TOKEN": "t0ken"}, "Bearer t0ken"),
        (
            "https://own.corp/c",
            {"PROVISION_CONDA_USER": "u", "PROVISION_CONDA_PASSWORD": "p"},
            basic("u", "p"),
        ),
        ("https://own.corp/c", {}, None),
    ],
)
def test_credentials_go_to_the_hosts_of_channels_alone(
    name: str, environ: dict[str, str], header: str | None
) -> None:
    channel = one(name, **environ)
    assert channel.url == "https://own.corp/c"
    headers = headers_for([channel])
    if header is None:
        assert headers is None
        return
    assert headers is not None
    assert headers("own.corp", "/c/noarch/repodata.json") == {"Authorization": header}
    assert headers("cdn.elsewhere", "/c/noarch/repodata.json") is None


def test_credentials_are_shown_nowhere() -> None:
    channel = one("https://user:secret@own.corp/t/tk-1234/chan")
    assert "secret" not in repr(channel)
    assert channel.url == "https://own.corp/chan"
    assert channel.name == "https://***@own.corp/t/***/chan"
    environ = {"PROVISION_CONDA_TOKEN": "abcdef"}
    text = "GET https://u:p@h/t/tok/x failed with abcdef"
    assert redacted(text, environ) == "GET https://***@h/t/***/x failed with ***"


@pytest.mark.parametrize("text", ["conda-forge", "a=b", "=http://x/y", "../x=http://x/y"])
def test_a_bad_channel_map_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_map(text)
    assert caught.value.code == "conda.bad-channel-map"


def test_a_bad_channel_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        one("--evil")
    assert caught.value.code == "conda.bad-channel"
