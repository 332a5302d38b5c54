"""The container image, unpacked and run as a runtime would run it: its user, a read-only root, and
nothing else of this machine's files. podman and skopeo do the same where they are installed."""

import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.exactly_once import assert_exactly_once, wait_for_all
from harness.oci import Image
from harness.services import CREDENTIALS

from .release import DEBIAN, MACHINE, architectures, only, version

# Runs a command in a root file system. It stays one process, so signals reach the program.
ENTER = """
mount --bind "$0" "$0"
mount -t proc proc "$0/proc"
mount --bind /dev "$0/dev"
mount -o remount,bind,ro "$0"
exec chroot --userspec="$IMAGE_USER" "$0" "$@"
"""


@dataclass
class Root:
    """An unpacked image, and the words that run a command in it."""

    image: Image
    directory: Path
    words: list[str]

    @property
    def program(self) -> list[str]:
        return self.image.configuration["config"]["Entrypoint"]

    def move(self, process):
        """The same process, of the image's program."""
        process.argv = [*self.program, *process.argv[1:]]
        process.within(self.words)
        return process


@pytest.fixture(scope="module", params=architectures())
def root(request, tmp_path_factory) -> Root:
    assert os.geteuid() == 0, "chroot and mounts need root"
    image = Image(only(f"*-{DEBIAN[request.param]}.oci.tar"))
    assert image.platform["architecture"] == DEBIAN[request.param]
    directory = image.unpack(tmp_path_factory.mktemp("root"))
    for mount_point in ("dev", "proc"):
        (directory / mount_point).mkdir(exist_ok=True)
    directory.chmod(0o755)
    words = ["env", f"IMAGE_USER={image.configuration['config']['User']}"]
    words += ["unshare", "--mount", "--", "sh", "-ec", ENTER, directory]
    if request.param != MACHINE:
        emulator = shutil.which(f"qemu-{request.param}-static")
        if emulator is None:
            pytest.skip(f"NOT TESTED: {request.param} needs qemu-user-static")
        shutil.copy(emulator, directory / "qemu")
        words.append("/qemu")
    return Root(image, directory, [str(word) for word in words])


def says(*command: object) -> str:
    words = [str(word) for word in command]
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


def test_the_entry_point_runs(root):
    output = says(*root.words, *root.program, "--version")
    assert output.startswith(f"millpond {version().split('-')[0]}\n")
    assert root.image.name == f"millpond:{version()}"


def test_the_pipeline_runs_in_the_image(root, site):
    run_the_pipeline(site, root.move)


def run_the_pipeline(site, move) -> None:
    gateway = move(site.gateway_of()).up()
    consumer = move(site.consumer_of()).up()
    load = site.load(gateway, records=2_000)
    load.run()
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, gateway, consumer)
    for process in (gateway, consumer):
        assert process.terminate() == 0
    assert_exactly_once(load.acknowledged(), site.clickhouse, site.database)


@pytest.fixture
def podman():
    """The words before a command of podman, with its storage in a folder."""
    if shutil.which("podman") is None:
        pytest.skip("NOT TESTED: podman is not on this machine")
    # podman rejects a runroot of more than 50 characters.
    folder = Path(tempfile.mkdtemp(prefix="podman-", dir="/tmp"))
    words = ["podman", "--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--events-backend=file"]
    words += [f"--{name}={folder / name}" for name in ("root", "runroot", "tmpdir")]
    # crun rejects version 1 of the control groups.
    if shutil.which("runc"):
        words.append("--runtime=runc")
    yield words
    says(*words, "rm", "--all", "--force")
    # Its files in a layer may be read-only.
    says(*words, "rmi", "--all", "--force")
    shutil.rmtree(folder, ignore_errors=True)


def test_podman_loads_and_runs_the_image(podman, site):
    archive = only(f"*-{DEBIAN[MACHINE]}.oci.tar")
    name = f"localhost/millpond:{version()}"
    assert name in says(*podman, "load", "--input", archive)

    def move(process):
        options = ["--rm", "--network=host", "--read-only", "--cap-drop=all"]
        options += [f"--env={variable}" for variable in CREDENTIALS]
        # podman's defaults are above what a machine in a sandbox may set.
        options += ["--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096"]
        process.argv = [*podman, "run", *options, name, *process.argv[1:]]
        return process

    run_the_pipeline(site, move)


def test_the_image_has_certificates_and_no_shell(root):
    bundle = root.directory / "etc/ssl/certs/ca-certificates.crt"
    listed = says("openssl", "storeutl", "-noout", "-certs", bundle)
    assert int(listed.rsplit(" ", 1)[-1]) > 100
    for folder in ("bin", "sbin", "usr/sbin"):
        assert not (root.directory / folder).exists()
    assert os.listdir(root.directory / "usr/bin") == ["millpond"]


@pytest.mark.parametrize("transport", ["oci-archive", "docker-archive"])
def test_skopeo_reads_the_image(root, transport):
    if shutil.which("skopeo") is None:
        pytest.skip("NOT TESTED: skopeo is not on this machine")
    archive = only(f"*-{root.image.platform['architecture']}.oci.tar")
    output = says("skopeo", "inspect", "--config", f"{transport}:{archive}")
    assert json.loads(output)["config"] == root.image.configuration["config"]
