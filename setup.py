"""What pyproject.toml cannot say: the compiled part, whose options depend on the system and on Python."""

import sys
import sysconfig

from setuptools import Extension, setup

# Contraction would make the bits those of the processor.
OPTIONS = ["/O2"] if sys.platform == "win32" else ["-O3", "-ffp-contract=off"]
OPENMP = ["-fopenmp"] if sys.platform == "linux" else []
LOOP = Extension(
    "rondo._weighted_sum",
    ["src/rondo/_weighted_sum.c"],
    extra_compile_args=OPTIONS + OPENMP,
    extra_link_args=OPENMP,
    py_limited_api=True,
    optional=True,  # without a C compiler Rondo is installed all the same, and averages more slowly
)

if sysconfig.get_config_var("Py_GIL_DISABLED"):  # has no stable interface yet
    setup()
else:
    setup(ext_modules=[LOOP], options={"bdist_wheel": {"py_limited_api": "cp311"}})
