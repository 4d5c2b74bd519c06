"""How an index is read: certificates, proxies, credentials, redirects, and what never leaks."""

import datetime as dt
import ipaddress
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from support.simpleindex import Index, _Handler

from provisioner.errors import OutsideError
from provisioner.lock.client import Client
from provisioner.lock.credentials import Credentials, bare
from provisioner.lock.defaults import built_in_index, package_index

WHAT = "package index"
SECRET = "s3cret"


@pytest.fixture
def index() -> Iterator[Index]:
    """An index with one project."""
    served = Index()
    served.add("filelock", "3.12.2")
    with served.serve():
        yield served


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No proxy, no netrc and no keyring of this machine."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")


def client(environ: Mapping[str, str] | None = None, **how: float) -> Client:
    return Client(environ=environ or {}, timeout_s=how.get("timeout_s", 5.0), attempts=2)


def page(index: Index, via: Client | None = None) -> int:
    return (via or client()).get(f"{index.url}/filelock/", WHAT).status


def failure(index: Index, via: Client | None = None) -> OutsideError:
    with pytest.raises(OutsideError) as caught:
        page(index, via)
    return caught.value


def told(error: OutsideError) -> str:
    return repr(error.to_dict())


# --- credentials ---


def test_netrc_is_used_for_its_host_alone(index: Index, tmp_path: Path) -> None:
    index.user = ("me", SECRET)
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login me password {SECRET}\n")
    assert page(index, client({"NETRC": str(netrc)})) == 200
    netrc.write_text(f"machine elsewhere login me password {SECRET}\n")
    assert failure(index, client({"NETRC": str(netrc)})).code == "index.credentials"


def test_netrc_in_the_home_folder_is_found(index: Index, tmp_path: Path) -> None:
    index.user = ("me", SECRET)
    (tmp_path / ".netrc").write_text(f"machine 127.0.0.1 login me password {SECRET}\n")
    assert page(index, client({"HOME": str(tmp_path)})) == 200


def test_a_default_entry_of_netrc_is_sent_to_nobody(index: Index, tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text(f"default login me password {SECRET}\n")
    assert page(index, client({"HOME": str(tmp_path)})) == 200
    assert index.heard == []


def test_a_damaged_netrc_is_no_crash(index: Index, tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine\n")
    assert page(index, client({"HOME": str(tmp_path)})) == 200


def test_the_user_in_an_address_is_sent_and_never_shown(index: Index) -> None:
    index.user = ("me@corp", SECRET)
    with_user = index.url.replace("http://", f"http://me%40corp:{SECRET}@")
    asking = client()
    assert asking.get(f"{with_user}/filelock/", WHAT).status == 200
    index.status["/filelock/"] = 500
    with pytest.raises(OutsideError) as caught:
        asking.get(f"{with_user}/filelock/", WHAT)
    assert SECRET not in told(caught.value)
    assert "me%40corp" not in told(caught.value)
    assert SECRET not in repr(asking.credentials)


def test_the_keyring_is_asked_after_a_refusal(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyring = pytest.importorskip("keyring")
    asked: list[str] = []

    class Ring(keyring.backend.KeyringBackend):  # type: ignore[misc, name-defined]
        priority = 1

        def get_password(self, service: str, username: str) -> str | None:
            return None

        def set_password(self, service: str, username: str, password: str) -> None:
            raise AssertionError

        def get_credential(self, service: str, username: str | None) -> object:
            asked.append(service)
            return keyring.credentials.SimpleCredential("me", SECRET)

    index.user = ("me", SECRET)
    before = keyring.get_keyring()
    keyring.set_keyring(Ring())
    try:
        assert page(index) == 200
    finally:
        keyring.set_keyring(before)
    assert asked == [f"{index.url}/filelock/"]


def test_credentials_do_not_follow_to_another_host(index: Index, tmp_path: Path) -> None:
    other = Index()
    with other.serve():
        index.user = ("me", SECRET)
        other.add("filelock", "3.12.2")
        index.redirect["/filelock/"] = other.url.replace("127.0.0.1", "localhost") + "/filelock/"
        (tmp_path / ".netrc").write_text(f"machine 127.0.0.1 login me password {SECRET}\n")
        assert page(index, client({"HOME": str(tmp_path)})) == 200
    assert index.heard
    assert other.heard == []


def test_bare_leaves_nothing_secret() -> None:
    assert bare("https://u:p@host:8443/simple/a/?token=t#f") == "https://host:8443/simple/a/"
    assert Credentials({}).learn("https://u:p@host/x?q=1") == "https://host/x?q=1"


# --- redirects ---


def test_redirects_are_followed_but_not_for_ever(index: Index) -> None:
    index.add("other", "1.0")
    index.redirect["/filelock/"] = "/simple/other/"
    assert page(index) == 200
    index.redirect["/other/"] = "/simple/other/"
    assert failure(index).code == "index.redirect"


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_a_redirect_away_from_http_is_refused(index: Index, target: str) -> None:
    index.redirect["/filelock/"] = target
    assert failure(index).code == "index.redirect"


# --- reaching ---


def test_a_name_without_an_address() -> None:
    with pytest.raises(OutsideError) as caught:
        client().get("http://no-such-host.invalid/simple/a/", WHAT)
    assert caught.value.code == "index.dns"
    assert "no-such-host.invalid" in caught.value.message


def test_a_proxy_is_used(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", index.url.removesuffix("/simple"))
    answer = client().get("http://no-such-host.invalid/simple/filelock/", WHAT)
    assert answer.status == 200
    assert index.asked == ["http://no-such-host.invalid/simple/filelock/"]
    monkeypatch.setenv("no_proxy", "no-such-host.invalid")
    with pytest.raises(OutsideError) as caught:
        client().get("http://no-such-host.invalid/simple/filelock/", WHAT)
    assert caught.value.code == "index.dns"


def test_a_proxy_that_is_away(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://me:{SECRET}@127.0.0.1:9")
    error = failure(index)
    assert error.code == "index.proxy"
    assert SECRET not in told(error)
    for text in ("socks9://127.0.0.1:9", "http://[::1", f"http://me:{SECRET}@127.0.0.1:99999"):
        monkeypatch.setenv("http_proxy", text)
        error = failure(index)
        assert error.code == "index.proxy", text
        assert SECRET not in told(error)


def test_a_server_error_is_asked_again(index: Index) -> None:
    index.status["/filelock/"] = 503
    assert failure(index).code == "index.server"
    assert len(index.asked) == 2


def test_an_answer_without_an_end_is_given_up(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("provisioner.lock.client.MAX_BODY", 10)
    assert failure(index).code == "index.endless"


# --- certificates ---


@pytest.fixture
def tls(index: Index, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The index once more behind TLS, with a certificate of its own: (address, certificate)."""
    certificate = tmp_path / "ca.pem"
    key = tmp_path / "key.pem"
    _self_signed(certificate, key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    handler = type("Handler", (_Handler,), {"index": index})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads, server.block_on_close = True, False
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"https://127.0.0.1:{server.server_port}/simple", certificate
    server.shutdown()
    server.server_close()


def _self_signed(certificate: Path, key_file: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


@pytest.mark.parametrize(
    "variable", ["PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"]
)
def test_the_users_certificates_count(tls: tuple[str, Path], variable: str) -> None:
    url, certificate = tls
    asking = client({variable: str(certificate)})
    assert asking.get(f"{url}/filelock/", WHAT).status == 200


def test_a_certificate_that_nobody_knows_is_refused_with_the_way_out(
    tls: tuple[str, Path], tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    _self_signed(other, tmp_path / "other-key.pem")
    with pytest.raises(OutsideError) as caught:
        client({"SSL_CERT_FILE": str(other)}).get(f"{tls[0]}/filelock/", WHAT)
    assert caught.value.code == "index.tls"
    assert "SSL_CERT_FILE" in (caught.value.next_step or "")


def test_a_redirect_that_leaves_tls_is_refused(tls: tuple[str, Path], index: Index) -> None:
    index.redirect["/filelock/"] = f"{index.url}/filelock/"
    with pytest.raises(OutsideError) as caught:
        client({"SSL_CERT_FILE": str(tls[1])}).get(f"{tls[0]}/filelock/", WHAT)
    assert caught.value.code == "index.redirect"


def test_certificates_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(OutsideError) as caught:
        client({"PIP_CERT": str(tmp_path / "nothing.pem")}).get("https://127.0.0.1:9/", WHAT)
    assert caught.value.code == "index.ca-bundle"
    assert "PIP_CERT" in caught.value.message


# --- which index ---


@pytest.fixture
def pip_conf(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A configuration file of pip, and an environment in which it is the only one."""
    path = tmp_path / "config" / "pip" / "pip.conf"
    path.parent.mkdir(parents=True)
    path.write_text("")
    nothing = str(tmp_path / "nothing")
    environ = {
        "HOME": nothing,
        "XDG_CONFIG_DIRS": nothing,
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }
    return path, environ


def test_the_package_index_is_the_one_of_the_users_client(
    pip_conf: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    path, environ = pip_conf
    built_in = package_index(None, environ)
    assert built_in.startswith("https://")
    assert built_in.endswith("/simple")
    path.write_text("[global]\nindex-url = https://mirror.example/simple/\n")
    assert package_index(None, environ) == "https://mirror.example/simple"
    named = tmp_path / "named.conf"
    named.write_text("[install]\nindex-url = https://named.example/simple\n[global]\nindex-url=x\n")
    environ["PIP_CONFIG_FILE"] = str(named)
    assert package_index(None, environ) == "https://named.example/simple"
    environ["PIP_CONFIG_FILE"] = os.devnull
    assert package_index(None, environ) == built_in
    environ["UV_DEFAULT_INDEX"] = "corp=https://uv.example/simple"
    assert package_index(None, environ) == "https://uv.example/simple"
    environ["PIP_INDEX_URL"] = "https://pip.example/simple"
    assert package_index(None, environ) == "https://pip.example/simple"
    assert package_index("https://given.example/x/", environ) == "https://given.example/x"


def test_pip_itself_reads_the_same_files(pip_conf: tuple[Path, dict[str, str]]) -> None:
    path, environ = pip_conf
    path.write_text("[global]\nindex-url = https://mirror.example/simple/\n")
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    told = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert told.stdout.strip() == "https://mirror.example/simple/"


def test_a_damaged_configuration_is_no_crash(pip_conf: tuple[Path, dict[str, str]]) -> None:
    path, environ = pip_conf
    path.write_text("index-url = nowhere\n")
    assert package_index(None, environ) == built_in_index()


def test_the_certificates_of_pips_configuration_count(
    tls: tuple[str, Path], pip_conf: tuple[Path, dict[str, str]]
) -> None:
    path, environ = pip_conf
    path.write_text(f"[global]\ncert = {tls[1]}\n")
    assert client(environ).get(f"{tls[0]}/filelock/", WHAT).status == 200


def test_an_index_that_is_no_http_address_is_refused_without_its_secret() -> None:
    with pytest.raises(OutsideError) as caught:
        package_index(None, {"PIP_INDEX_URL": f"ftp://me:{SECRET}@host/x"})
    assert caught.value.code == "index.no-default"
    assert SECRET not in told(caught.value)


def test_the_built_in_index_is_found_through_the_command_line_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from_inside = built_in_index()
    monkeypatch.setitem(sys.modules, "pip._internal.models.index", None)
    assert built_in_index() == from_inside
