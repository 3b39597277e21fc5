"""Imports an installed package: ``python -I testing/public_face.py MODULE``."""

import sys
from importlib import import_module
from types import ModuleType


def problems(face: ModuleType) -> list[str]:
    """Say what is wrong with the public names of a package that came from a wheel."""
    names: list[str] = getattr(face, "__all__", [])
    if not names:
        return ["expected public names in __all__, got none"]
    found = [
        f"expected {name} of __all__, got no such name" for name in names if not hasattr(face, name)
    ]
    if "site-packages" not in str(face.__file__):
        found.append(f"expected an installed package, got {face.__file__}")
    return found


if __name__ == "__main__":
    sys.exit("\n".join(problems(import_module(sys.argv[1]))) or None)
