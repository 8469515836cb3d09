"""Speed, measured side by side with MirrorMaker 2: ``make bench``. Not part of the installed package; run from the checkout."""
