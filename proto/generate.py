"""Compile proto/ into the stubs of client and daemon; run it with any Python after editing a .proto file.

`respsd` goes into clients/python/respsd_client/v1. `inference`, whose names are other projects' too, goes into the
daemon alone: a program that has a KServe or Triton client besides could not load both.

The compiler's version is pinned and lives in a throwaway virtual environment, because stubs run on runtimes
as new as their compiler or up to one major version newer: these on protobuf 6.30 to 7.x and grpcio from 1.72.1.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

COMPILER = ("grpcio-tools==1.72.1", "mypy-protobuf==5.1.0")  # the second writes the .pyi files
PROTO = Path(__file__).resolve().parent
STUBS = {
    "respsd/v1": (PROTO.parent / "clients" / "python", "respsd_client.v1"),
    "inference": (PROTO.parent / "daemon", "respsd.service.oip"),
}
"""Where a folder's stubs go, and what they are imported as: neither is where protoc has them import each other from."""


def compile_protos(python: Path, out: Path) -> None:
    """Run protoc: messages of every file, service stubs of the files that declare a service."""
    files = sorted(PROTO.rglob("*.proto"))
    services = [file for file in files if "\nservice " in file.read_text()]
    typed = [f"--plugin={python.parent / plugin}" for plugin in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")]
    protoc = [str(python), "-m", "grpc_tools.protoc", f"--proto_path={PROTO}", *typed]
    subprocess.run([*protoc, f"--python_out={out}", f"--mypy_out={out}", *map(str, files)], check=True)
    subprocess.run(
        [*protoc, f"--grpc_python_out={out}", f"--mypy_grpc_out={out}", *map(str, services)],
        check=True,
    )


def main() -> None:
    """Replace the committed stubs."""
    with tempfile.TemporaryDirectory() as scratch:
        environment, out = Path(scratch, "venv"), Path(scratch, "out")
        out.mkdir()
        venv.create(environment, with_pip=True)
        python = environment / "bin" / "python"
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *COMPILER], check=True)
        compile_protos(python, out)
        for source, (root, package) in STUBS.items():
            place = root.joinpath(*package.split("."))
            for old in place.glob("*_pb2*"):
                old.unlink()
            module = re.compile(rf"\b{source.replace('/', '[.]')}(?= import |\.\w+_pb2')")
            for new in sorted((out / source).iterdir()):
                (place / new.name).write_text(module.sub(package, new.read_text()))
                sys.stdout.write(f"{package}.{new.name}\n")


if __name__ == "__main__":
    main()
