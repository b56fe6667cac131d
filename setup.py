"""What pyproject.toml cannot say: the compiled part, whose options depend on the system."""

import sys

from setuptools import Extension, setup

# Contraction would make the bits those of the processor.
OPTIONS = ["-O3", "-ffp-contract=off"]
OPENMP = ["-fopenmp"] if sys.platform == "linux" else []

setup(
    ext_modules=[
        Extension(
            "rondo._weighted_sum",
            ["src/rondo/_weighted_sum.c"],
            extra_compile_args=OPTIONS + OPENMP,
            extra_link_args=OPENMP,
            py_limited_api=True,
            optional=True,  # without a C compiler Rondo is installed all the same, and averages more slowly
        )
    ]
)
