"""What the probe reads: promises, torch on disk, folders, ELF files, a cache, its own output."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.needs import needs

from provisioner.verify import probe

PROBE = Path(probe.__file__)
KERNEL = 'extern "C" void kernel(const float* in, float* out) { out[0] = in[0] + 0.123457; }'
PROBES = [
    'extern "C" void __avx_chk_kernel() { store(); }',
    'extern "C" void __amx_chk_kernel() { _tile_zero(0); }',
    # Seen in torch 2.13 on a CPU with VNNI: the name does not end in _chk_kernel.
    'extern "C" __m256i __avx512_vnni_chk_kernel_1(__m256i a, __m256i b) { return a; }',
]


def test_a_promise_is_read_from_text_and_from_a_file(tmp_path: Path) -> None:
    promise = {"torch": "2.0.1", "cuda": "11.7", "compile": True, "made_by": "provision render"}
    assert probe.read_expect(json.dumps(promise)) == promise
    path = tmp_path / "expect.json"
    path.write_text(json.dumps(promise), encoding="utf-8")
    assert probe.read_expect(str(path)) == promise
    assert probe.read_expect(None) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ('{"torch": 2.0}', "torch must be str"),
        ('{"cuda": 11.7}', "cuda must be str or null"),
        ('{"compile": "yes"}', "compile must be bool"),
        ('{"device": "tpu"}', "device must be cpu or cuda"),
        ("/no/such/file.json", "cannot read"),
    ],
)
def test_a_promise_that_cannot_be_understood(text: str, words: str) -> None:
    with pytest.raises(probe.UsageError, match=words):
        probe.read_expect(text)


def test_a_promise_file_must_hold_an_object(tmp_path: Path) -> None:
    path = tmp_path / "expect.json"
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(probe.UsageError, match="one JSON object"):
        probe.read_expect(str(path))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2.0.1+cu117", (2, 0)), ("2.15.0a0+git", (2, 15)), ("2.10", (2, 10)), (None, (0, 0))],
)
def test_release(text: str | None, expected: tuple[int, int]) -> None:
    assert probe.release(text) == expected


def fake_torch(folder: Path, version: str, cuda: str | None, metadata: bool = True) -> Path:
    """A folder with what a torch install shows before it is imported."""
    package = folder / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('the parent imports no torch')")
    (package / "version.py").write_text(
        f"__version__ = '{version}'\ndebug = False\ncuda: Optional[str] = {cuda!r}\n"
    )
    if metadata:
        info = folder / f"torch-{probe.public(version)}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: torch\nVersion: {probe.public(version)}\n")
    return folder


@pytest.mark.parametrize("cuda", ["11.7", None])
def test_torch_is_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda: str | None
) -> None:
    monkeypatch.setattr(sys, "path", [str(fake_torch(tmp_path, "2.0.1+cu117", cuda))])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    found = probe.find_torch()
    assert found is not None
    assert (found["version"], found["cuda"]) == ("2.0.1+cu117", cuda)
    assert "torch" not in sys.modules


def test_every_torch_on_the_path_is_listed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fake_torch(tmp_path / "b", "2.6.0", "12.4")
    bare = fake_torch(tmp_path / "a", "2.0.1", None, metadata=False)
    alias = tmp_path / "alias"
    alias.symlink_to(first)
    monkeypatch.setattr(sys, "path", [str(first), str(alias), str(bare), str(tmp_path / "none")])
    dists = probe.list_torch_dists()
    assert [(d["version"], d["path"]) for d in dists] == [("2.6.0", str(first)), (None, str(bare))]


def test_folders_are_judged_by_writing(tmp_path: Path) -> None:
    facts = probe.look_at_folder(str(tmp_path / "not" / "yet"))
    assert facts["writable"]
    assert not facts["exists"]
    assert facts["judged"] == str(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert not probe.look_at_folder("/proc")["writable"]


def test_temporary_folder_is_the_one_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.delenv(variable, raising=False)
    assert probe.temporary_folder() == ("", "/tmp")
    monkeypatch.setenv("TEMP", "/read-only")
    assert probe.temporary_folder() == ("TEMP", "/read-only")


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        ("ann", "2.0.1", "/scratch/torchinductor_ann"),
        ("DOM\\ann", "2.6.0", "/scratch/torchinductor_DOM_ann"),
        (None, "2.12.1", None),
        (None, "2.13.0", "/scratch/torchinductor_uid_12345"),
    ],
)
def test_default_cache_folder(
    monkeypatch: pytest.MonkeyPatch, name: str | None, version: str, expected: str | None
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", "/scratch")
    assert probe.default_cache({"name": name, "uid": 12345}, version) == expected
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/cache")
    assert probe.default_cache({"name": name, "uid": 12345}, version) == "/cache"


def test_compilers_by_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "clang++")
    monkeypatch.delenv("CC", raising=False)
    assert probe.compiler_names("cpp", "2.0.1") == ["g++"]
    assert probe.compiler_names("cpp", "2.13.0") == ["clang++"]
    assert probe.compiler_names("c", "2.13.0") == ["gcc", "clang"]


def test_elf_files(tmp_path: Path) -> None:
    whole = Path(sys.executable).resolve()
    facts = probe.read_elf(str(whole))
    assert facts["whole"]
    assert facts["machine"] == probe.host_machine()
    for content, problem in (
        (whole.read_bytes()[:1000], "cut short"),
        (b"", "empty"),
        (b"not a library at all" * 10, "not an ELF file"),
    ):
        path = tmp_path / "kernel.so"
        path.write_bytes(content)
        facts = probe.read_elf(str(path))
        assert not facts["whole"]
        assert problem in facts["problem"]
    assert not probe.read_elf(str(tmp_path / "none"))["whole"]


def test_a_cache_is_told_apart(tmp_path: Path) -> None:
    binary = Path(sys.executable).resolve().read_bytes()
    for number, source in enumerate([KERNEL, *PROBES]):
        folder = tmp_path / "cache" / f"c{number}"
        folder.mkdir(parents=True)
        (folder / "x.main.cpp").write_text(source)
        (folder / "x.main.so").write_bytes(binary)
    (tmp_path / "cache" / "fxgraph" / "ab").mkdir(parents=True)
    (tmp_path / "cache" / "fxgraph" / "ab" / "entry").write_bytes(b"0.123457")
    (tmp_path / "cache" / "cuda_utils.so").write_bytes(binary)
    (tmp_path / "cache" / "k.cubin").write_bytes(b"")
    facts = probe.inspect_cache(str(tmp_path), "0.123457")
    assert [k["path"] for k in facts["kernel_so"]] == ["cache/c0/x.main.so"]
    assert facts["kernel_so"][0]["marked"]
    assert len(facts["isa_probe_so"]) == len(PROBES)
    assert [k["path"] for k in facts["other_so"]] == ["cache/cuda_utils.so"]
    assert facts["marked_sources"] == ["cache/c0/x.main.cpp"]
    assert facts["cache_entries"] == {"fxgraph": 1}
    assert facts["kinds"] == {
        "cpp": 4,
        "cubin": 1,
        "fxgraph": 1,
        "isa_probe_so": 3,
        "kernel_so": 1,
        "other_so": 1,
    }


def test_the_constant_is_its_own_repr() -> None:
    for text in {probe.draw_constant() for _ in range(500)}:
        assert repr(float(text)) == text
        assert len(text) == len("0.123457")


def test_lines_of_a_child_are_told_from_noise() -> None:
    mark = f"{probe.MARK} abc "
    output = "\n".join(
        [
            "a library prints this",
            mark + '{"stage": "import"}',
            f'{probe.MARK} xyz {{"done": true}}',
            mark + '{"run:function": {"unique_graphs": 1}}',
            mark + '{"stage": "net"}',
            mark + '{"done": tr',
        ]
    )
    record = probe.read_marks(output.encode(), "abc")
    assert record["stage"] == "net"
    assert record["runs"] == {"function": {"unique_graphs": 1}}
    assert record["done"] is False


needs_cxx = needs("system", missing=shutil.which("g++") is None, reason="no g++ on this machine")


def fake_compiler(folder: Path, body: str) -> str:
    """A program that answers --version as the real g++ does and otherwise runs `body`."""
    path = folder / "g++"
    path.write_text(f'#!/bin/sh\ncase "$*" in *--version*) echo g++ 12;; *) {body};; esac\n')
    path.chmod(0o755)
    return str(path)


@needs_cxx
def test_a_compiler_is_judged_by_a_library_that_loads(tmp_path: Path) -> None:
    facts = probe.look_at_compiler(["no-such-g++", "g++"], "cpp", str(tmp_path))
    assert facts["problem"] is None
    assert facts["name"] == "g++"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("echo 'fatal error: cannot execute cc1plus' >&2; exit 1", "fails"),
        ('for last; do :; done; : > "$last"', "output"),
        ('for last; do :; done; head -c 1000 /bin/sh > "$last"', "output"),
        ('for last; do :; done; cp /bin/sh "$last"', "load"),
    ],
)
def test_a_compiler_that_only_answers_its_version(tmp_path: Path, body: str, problem: str) -> None:
    name = fake_compiler(tmp_path, body)
    facts = probe.look_at_compiler([name], "cpp", str(tmp_path))
    assert facts["problem"] == problem
    assert facts["version"] == "g++ 12"


def test_a_compiler_for_another_machine(tmp_path: Path) -> None:
    foreign = bytearray(Path("/bin/sh").read_bytes())
    foreign[18] ^= 0xFF
    (tmp_path / "foreign.so").write_bytes(foreign)
    body = f'for last; do :; done; cp {tmp_path}/foreign.so "$last"'
    facts = probe.look_at_compiler([fake_compiler(tmp_path, body)], "cpp", str(tmp_path))
    assert (facts["problem"], facts["said"]) == ("output", "built for another machine")


def test_headers_must_be_readable_by_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "python_headers", lambda: (str(tmp_path), str(tmp_path)))
    failing = {"name": fake_compiler(tmp_path, "echo 'fatal error: pyconfig.h' >&2; exit 1")}
    facts = probe.look_at_headers(failing, str(tmp_path))
    assert facts["problem"] == "unreadable"
    assert "pyconfig.h" in facts["said"]
    assert probe.look_at_headers(None, str(tmp_path))["problem"] is None
    monkeypatch.setattr(probe, "python_headers", lambda: (None, "/expected"))
    assert probe.look_at_headers(None, str(tmp_path))["problem"] == "missing"


def test_no_compiler_at_all(tmp_path: Path) -> None:
    assert probe.look_at_compiler(["no-such-g++"], "cpp", str(tmp_path))["problem"] == "missing"


def test_a_script_beside_the_probe_shadows_nothing(tmp_path: Path) -> None:
    shutil.copy(PROBE, tmp_path / "probe.py")
    (tmp_path / "json.py").write_text("raise RuntimeError('shadowed')")
    (tmp_path / "glob.py").write_text("raise RuntimeError('shadowed')")
    done = subprocess.run(
        [sys.executable, str(tmp_path / "probe.py"), "--help"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--strict-cache" in done.stdout
