"""Everything static lies in pyproject.toml; this file ships the templates and the device headers inside the wheel."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ASSETS = ("templates", "include")


class BuildWithAssets(build_py):
    """``build_py`` that copies ``templates/`` and ``include/`` to ``chord_jit/_assets/``, where ``assets.folder`` looks first.

    An editable install copies nothing: it reads both folders in the checkout, so that an edit of a kernel takes effect.
    """

    def run(self):
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "chord_jit" / "_assets"
        shutil.rmtree(target, ignore_errors=True)
        for name in ASSETS:
            shutil.copytree(Path(__file__).parent / name, target / name)


setup(cmdclass={"build_py": BuildWithAssets})
