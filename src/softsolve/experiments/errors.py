"""What can go wrong in a run, and the exit code of each."""

EXIT_CODES = {
    0: "done",
    1: "an unexpected error: a bug in softsolve",
    2: "an unknown option, experiment, setting or value",
    3: "a data set is missing, truncated or corrupt",
    4: "the output cannot be written, or the directory holds another run",
    130: "interrupted; run the same command to continue",
}


class ExperimentError(Exception):
    """An error to be told to the user, not traced."""

    exit_code = 1


class SettingError(ExperimentError, ValueError):
    """A setting that does not exist, or a value that it cannot take."""

    exit_code = 2


class DataError(ExperimentError):
    """A data set that is not there, or is not what it should be."""

    exit_code = 3


class OutputError(ExperimentError):
    """An output directory that cannot be used."""

    exit_code = 4
