"""Extensions and their flags; everything else is in pyproject.toml."""

from __future__ import annotations

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wsign-compare"]
# Cython's own runtime and CPython's headers convert freely; those warnings are theirs.
NOT_OURS = ["-Wno-unused-parameter", "-Wno-unused-function", "-Wno-missing-field-initializers"]
FLAGS = ["-O3", "-fno-strict-aliasing", "-fvisibility=hidden", *WARNINGS, *NOT_OURS]
if os.environ.get("NETREEVE_BUILD_WERROR"):
    FLAGS.append("-Werror")

NAMES = ["details", "encode", "index", "receive", "stage", "wire"]

setup(
    options={"build_ext": {"parallel": True}},
    ext_modules=cythonize(
        [
            Extension(
                f"netreeve._ext.{name}",
                [f"ext/netreeve/_ext/{name}.pyx"],
                extra_compile_args=FLAGS,
            )
            for name in NAMES
        ],
        include_path=["ext"],
        compiler_directives={
            "language_level": "3",
            "boundscheck": True,
            "wraparound": False,
            "initializedcheck": True,
            "auto_pickle": False,
            "autotestdict": False,
            "embedsignature": False,
        },
    ),
)
