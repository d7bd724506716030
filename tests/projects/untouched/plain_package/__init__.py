"""A package with an extension module and nothing to do with tlaot."""

from ._answer import answer as answer
