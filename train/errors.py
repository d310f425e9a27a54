"""What a user can have done wrong, as one line that names what, where, and what to do next."""


class TrainError(Exception):
    """Ends the program with its text on one line."""
