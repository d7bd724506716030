"""A project of the old kind: all metadata in setup.py, and a build command of its own."""

from setuptools import setup
from setuptools.command.build import build


class BuildWithNote(build):
    """Leaves a file in the package, so that a test sees that it ran."""

    def run(self):
        super().run()
        with open(f"{self.build_lib}/setup_kernels/note.txt", "w", encoding="utf-8") as note:
            note.write("built\n")


setup(
    name="setup-kernels",
    version="1.0",
    python_requires=">=3.10",
    packages=["setup_kernels"],
    install_requires=["tlaot"],
    cmdclass={"build": BuildWithNote},
)
