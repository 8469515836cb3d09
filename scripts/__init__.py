"""Tools of the checkout: generated pages, pinned jars, the tests of CI. Not part of the installed package."""
