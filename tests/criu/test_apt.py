"""apt: which mirrors a configuration names, and what its failures mean."""

import http.server
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusnap.criu import apt
from gpusnap.criu.apt import Mirror, PrivateApt, debian_mirrors
from gpusnap.errors import GpusnapError, IntegrityError, NotFoundError

BOOKWORM_SOURCES = """\
# See sources.list(5)
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""

ONE_LINE = """\
# deb http://commented.example/debian bookworm main
deb http://plain.example/debian bookworm main non-free-firmware # the mirror
deb [arch=amd64 signed-by=/etc/apt/a.gpg,/etc/apt/b.gpg] https://signed.example/debian/ trixie main
deb-src http://source.example/debian bookworm main
deb http://plain.example/debian-security bookworm-security main
deb cdrom:[Debian 12]/ bookworm main
deb https://vendor.example/linux/debian bookworm stable
deb https://other.example/repo nodistro main
"""

KEY_INSIDE = """\
Types: deb
URIs: https://inside.example/debian
Suites: stable
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mDMEZ
 -----END PGP PUBLIC KEY BLOCK-----
"""


def _configured(folder: Path, **files: str) -> tuple[Mirror, ...]:
    parts = folder / "sources.list.d"
    parts.mkdir(parents=True)
    for name, text in files.items():
        stem, _, suffix = name.partition("_")
        (parts / f"{stem}.{suffix}").write_text(text)
    return debian_mirrors(folder / "sources.list", parts)


def test_stanzas_of_debian_12(tmp_path: Path) -> None:
    (mirror,) = _configured(tmp_path, debian_sources=BOOKWORM_SOURCES)
    assert mirror == Mirror(
        uri="http://mirror.example/debian",
        signed_by="/usr/share/keyrings/debian-archive-keyring.gpg",
    )


def test_one_line_entries(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text(ONE_LINE)
    assert _configured(tmp_path) == (
        Mirror(uri="http://plain.example/debian"),
        Mirror(uri="https://signed.example/debian/", signed_by="/etc/apt/a.gpg /etc/apt/b.gpg"),
    )


def test_a_key_written_into_the_entry_is_kept(tmp_path: Path) -> None:
    (mirror,) = _configured(tmp_path, own_sources=KEY_INSIDE)
    assert mirror.signed_by.splitlines()[1:3] == [" -----BEGIN PGP PUBLIC KEY BLOCK-----", " ."]
    assert apt._keys(mirror.signed_by) == mirror.signed_by


@pytest.mark.parametrize("value", ["no", "false", "Off"])
def test_a_disabled_stanza_does_not_count(tmp_path: Path, value: str) -> None:
    assert _configured(tmp_path, a_sources=f"Enabled: {value}\n{KEY_INSIDE}") == ()


def test_other_vendors_do_not_count(tmp_path: Path) -> None:
    ubuntu = "Types: deb\nURIs: http://u.example/ubuntu\nSuites: noble\nComponents: main\n"
    assert _configured(tmp_path, ubuntu_sources=ubuntu) == ()


def test_other_files_do_not_count(tmp_path: Path) -> None:
    line = "deb http://a.example/debian bookworm main\n"
    assert _configured(tmp_path, a_disabled=line, b_save=line) == ()


def test_the_likeliest_mirror_comes_first(tmp_path: Path) -> None:
    text = "deb http://x.example/tools bookworm main\ndeb http://y.example/debian sid main\n"
    mirrors = _configured(tmp_path, all_list=text)
    assert [mirror.uri for mirror in mirrors] == [
        "http://y.example/debian",
        "http://x.example/tools",
    ]


def test_keys_of_the_next_release_stand_beside_the_entry_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("trixie-stable", "keyring", "removed-keys"):
        (tmp_path / f"debian-archive-{name}.gpg").touch()
    monkeypatch.setattr(apt, "KEY_FOLDER", tmp_path)
    keyring, trixie = (f"{tmp_path}/debian-archive-{n}.gpg" for n in ("keyring", "trixie-stable"))
    assert apt._keys("/own.gpg") == f"/own.gpg {keyring} {trixie}"
    assert apt._keys(keyring) == f"{keyring} {trixie}"
    assert apt._keys("") == f"{keyring} {trixie}"


@pytest.mark.parametrize(
    ("line", "error", "text"),
    [
        ("E: Failed to fetch http://m/InRelease  Could not connect", GpusnapError, "reached"),
        ("E: Failed to fetch http://m/x  Temporary failure resolving 'm'", GpusnapError, "reached"),
        ("E: You don't have enough free space in /var/x/.", GpusnapError, "no space left"),
        ("E: Write error - write (28: No space left on device)", GpusnapError, "no space left"),
        (
            "E: The repository 'http://m trixie InRelease' is not signed.",
            IntegrityError,
            "signature",
        ),
        ("W: GPG error: http://m trixie InRelease: NO_PUBKEY 12", IntegrityError, "signature"),
        ("E: Failed to fetch http://m/a.deb  Hash Sum mismatch", IntegrityError, "does not match"),
        ("E: Release file for http://m is expired", IntegrityError, "out of date"),
        ("E: The repository 'http://m x' does not have a Release file.", NotFoundError, "carry"),
        ("E: Unable to locate package criu", NotFoundError, "carry"),
        ("E: Something new", GpusnapError, "apt could not fetch CRIU"),
    ],
)
def test_what_apt_says(line: str, error: type[GpusnapError], text: str) -> None:
    found = apt._explain(f"Reading...\n{line}\n")
    assert type(found) is error
    assert text in found.text
    assert found.cure
    assert found.details == (line,)


apt_get = pytest.mark.skipif(shutil.which("apt-get") is None, reason="Needs apt")


@apt_get
def test_a_mirror_that_cannot_be_reached(tmp_path: Path) -> None:
    closed = Mirror(uri="http://127.0.0.1:9/debian")
    with pytest.raises(GpusnapError, match="cannot be reached") as caught:
        PrivateApt(tmp_path / "apt", closed, "trixie").update()
    assert "network" in str(caught.value.cure)


@apt_get
def test_a_mirror_without_the_suite(tmp_path: Path) -> None:
    (tmp_path / "mirror").mkdir()
    empty = Mirror(uri=f"file:{tmp_path}/mirror")
    with pytest.raises(NotFoundError, match="does not carry the Debian suite"):
        PrivateApt(tmp_path / "apt", empty, "trixie").update()


def _unsigned_mirror(folder: Path) -> Mirror:
    suite = folder / "dists" / "trixie"
    suite.mkdir(parents=True)
    release = "Origin: Debian\nSuite: stable\nCodename: trixie\nComponents: main\n"
    (suite / "Release").write_text(release + "Date: Sat, 09 Aug 2025 12:00:00 UTC\nSHA256:\n")
    return Mirror(uri=f"file:{folder}")


@apt_get
def test_a_list_that_nobody_signed_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lax = tmp_path / "lax.conf"
    lax.write_text('Acquire::AllowInsecureRepositories "1";\nAPT::Get::AllowUnauthenticated "1";\n')
    monkeypatch.setenv("APT_CONFIG", str(lax))
    mirror = _unsigned_mirror(tmp_path / "mirror")
    with pytest.raises(IntegrityError, match="signature of Debian's package list"):
        PrivateApt(tmp_path / "apt", mirror, "trixie").update()


@apt_get
@pytest.mark.skipif(shutil.which("gpg") is None, reason="Needs gpg to sign with a wrong key")
def test_a_list_signed_by_another_key_is_not_taken(tmp_path: Path) -> None:
    mirror = _unsigned_mirror(tmp_path / "mirror")
    home = tmp_path / "gpg"
    home.mkdir(mode=0o700)
    gpg = ["gpg", "--homedir", str(home), "--batch", "--passphrase", ""]
    release = tmp_path / "mirror" / "dists" / "trixie" / "Release"
    signed = str(release.with_name("InRelease"))
    try:
        make = [*gpg, "--quick-generate-key", "Stranger <a@b.example>", "ed25519", "sign"]
        subprocess.run(make, check=True, capture_output=True)
        subprocess.run([*gpg, "--clearsign", "-o", signed, str(release)], check=True)
    finally:
        subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "gpg-agent"], check=False)
    with pytest.raises(IntegrityError, match="signature of Debian's package list"):
        PrivateApt(tmp_path / "apt", mirror, "trixie").update()


@pytest.fixture
def quiet_server(tmp_path: Path) -> Iterator[str]:
    """A server that has nothing, on this machine alone."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self.send_error(404)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/debian"
        server.shutdown()
        thread.join()


@apt_get
def test_a_server_without_the_suite(tmp_path: Path, quiet_server: str) -> None:
    with pytest.raises(NotFoundError, match="does not carry the Debian suite"):
        PrivateApt(tmp_path / "apt", Mirror(uri=quiet_server), "trixie").update()


@apt_get
def test_the_machine_s_hooks_and_state_stay_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = tmp_path / "hooks.conf"
    hooks.write_text(
        'APT::Update::Pre-Invoke:: "touch /nowhere/hook";\n'
        'Acquire::http::Proxy "http://127.0.0.1:9";\n'
    )
    monkeypatch.setenv("APT_CONFIG", str(hooks))
    PrivateApt(tmp_path / "apt", Mirror(uri="http://m.example/debian"), "trixie")
    text = (tmp_path / "apt" / "apt.conf").read_text()
    assert 'Acquire::http::Proxy "http://127.0.0.1:9";' in text
    assert "Invoke" not in text
    assert f'Dir::State::status "{tmp_path}/apt/state/status";' in text
