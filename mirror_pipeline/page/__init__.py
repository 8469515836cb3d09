"""The page: how mirrors are, and what may be done about them, in a browser."""
