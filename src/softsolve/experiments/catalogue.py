"""The data sets of the experiments: what they are and where they are published."""

import dataclasses
import gzip
import hashlib
import zlib
from collections.abc import Mapping
from pathlib import Path

from softsolve.experiments.errors import DataError


@dataclasses.dataclass(frozen=True)
class DataSet:
    """A published data set.

    Attributes
    ----------
    name, folder
        What it is called, and its folder in the directory of data sets.
    experiments
        Which experiments read it.
    published
        Where it comes from.
    without
        What experiments use where it is not there.
    suffixes
        How the names of its files may end.
    checksums
        Files, and what each must be: ``sha256:`` of its contents (of ``.csv.gz``,
        unpacked), ``md5:`` of the file, or its length, ``bytes:``, where no checksum
        is published; empty where not even that is known.
    """

    name: str
    folder: str
    experiments: tuple[str, ...]
    published: str
    without: str
    suffixes: tuple[str, ...]
    checksums: Mapping[str, str]


def _parse_checksums(text: str) -> dict[str, str]:
    """Read what the program sha256sum writes."""
    pairs = [line.split() for line in text.strip().splitlines()]
    return {name: f"sha256:{digest}" for digest, name in pairs}


LABEL_RANKING = DataSet(
    name="label-ranking",
    folder="label_ranking",
    experiments=("ranking",),
    published=(
        "the 21 label-ranking data sets of Hüllermeier et al. (2008) and Cheng et al. "
        "(2009), from the group's pages at the universities of Marburg and Paderborn: "
        "https://www.uni-marburg.de/fb12/kebi/research/software"
    ),
    without="data sets built from scikit-learn's: iris, wine, digits, diabetes",
    suffixes=(".csv.gz", ".csv"),
    checksums=_parse_checksums(
        """
        e4c047586a2fd9409c64209c3ed5082d370abe5b8bf0d5b71a614dd2e8e8969d  authorship
        7aefec1e0b1011865c75e8fd5fb4e04703eb8ad84db7c36e783f9b1c44cf3b73  bodyfat
        7b52c00516a7c60dee518f45282714f62a515416d915763e47f0acab27d6355f  calhousing
        8f6234b9c9379d462dbd4e04dd5144f83a9ede156964b32ed74f351c244feccf  cold
        9a8171c3fe28c3d1b28b92a73efc5deb51aa24fa6548156efadbb687a460ad1d  cpu-small
        4081dbe806dbbb23206ef36a3adf2d42bf4fcd89f7293b83b151540856750df6  diau
        2110ebc830c35d10815304fdd687b8fa92efc44f27a3bfbf9dfef453b8b0e51c  dtt
        fcd6171e084ccf9b073694e1d5085f883762a588eb1767cb79002d2ddc12e609  elevators
        50f5d7b1cd011d1c52464faa98e68dea85252f383e18e8b763296242e22758f7  fried
        3d46e7a7e8cb9fb81d5a57ae2b85ac764e25638a1f4b3f2b5d79f2ecc20988ea  glass
        4f857163e25639bbc74109a202465ad851bc9aaad2e01d1b2a881492e11eb59e  heat
        fc8e9c9a20a24d97805ee36a975d6c2e5585232e52bb3da1a3ed08895e3de5ab  housing
        59f6ca17c0225b0c3260d1ba770ba26d56b5976b70a8c1d0cab0854db22e5b4f  iris
        4dffc163769bc381f29848890f8c725e1d43389d62631cfd883e066a4221c8aa  pendigits
        c94889da6aba609b7ad3ec2ce433ca04cd062e080a07c9036127c37cd1c206b4  segment
        2416cdb262387387e82134f7d325364795063a0991feb2893e4739c0c85238b2  spo
        c9293fb005821a274cf484b24ae22ae7104018d63ce0d30b96786456abbf7c47  stock
        042fa45f5761ac84a0385994a92a71bfa4fb7505d22f725f93ad24f181a26ea7  vehicle
        da4f44358a8248479db014961b6c9228a8e0933319ff26eb3185a9ada757368e  vowel
        ef86202bf97a1e18585bc3669364d8f746bafb91247b312de040217eafd27ed3  wine
        1c4deae3a4aca802cbb11448a40a8d47ae8ebac3d97e01ef8cc4b6b5d808c1d1  wisconsin
        """
    ),
)

WARCRAFT_MAPS = DataSet(
    name="warcraft-maps",
    folder="warcraft_shortest_path_oneskin/12x12",
    experiments=("shortest-path",),
    published=(
        "warcraft_maps.tar.gz of Vlastelica et al. (2019): "
        "https://edmond.mpg.de/dataset.xhtml?persistentId=doi:10.17617/3.YJCQ5S"
    ),
    without="generated maps in the same format (`softsolve maps DIR` writes them)",
    suffixes=(".npy",),
    checksums={
        f"{split}_{kind}": ""
        for split in ("train", "test")
        for kind in ("maps", "vertex_weights", "shortest_paths")
    },
)

CIFAR_10 = DataSet(
    name="cifar-10",
    folder="",
    experiments=("classification",),
    published=(
        "cifar-10-binary.tar.gz or cifar-10-python.tar.gz of Krizhevsky (2009), or the "
        "folder in it: https://www.cs.toronto.edu/~kriz/cifar.html"
    ),
    without="scikit-learn's digits",
    suffixes=("",),
    checksums={
        "cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-10-python.tar.gz": "md5:c58f30108f718f92721af3b95e74349a",
        "cifar-10-batches-bin/data_batch_1.bin": "bytes:30730000",
        "cifar-10-batches-bin/data_batch_2.bin": "bytes:30730000",
        "cifar-10-batches-bin/data_batch_3.bin": "bytes:30730000",
        "cifar-10-batches-bin/data_batch_4.bin": "bytes:30730000",
        "cifar-10-batches-bin/data_batch_5.bin": "bytes:30730000",
        "cifar-10-batches-bin/test_batch.bin": "bytes:30730000",
        "cifar-10-batches-py/data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
        "cifar-10-batches-py/data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
        "cifar-10-batches-py/data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
        "cifar-10-batches-py/data_batch_4": "md5:634d18415352ddfa80567beed471001a",
        "cifar-10-batches-py/data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
        "cifar-10-batches-py/test_batch": "md5:40351d587109b95175f43aff81a1287e",
    },
)

CATALOGUE = (LABEL_RANKING, WARCRAFT_MAPS, CIFAR_10)


def find(data: Path | None, data_set: DataSet, name: str) -> Path:
    """Return the path of a data set's file, below ``data`` or in its folder."""
    file = Path(data_set.folder) / f"{name}{data_set.suffixes[0]}"
    if data is None:
        msg = (
            f"{name} has to be read from a file of {data_set.name}. Pass --data DIR, "
            f"with DIR/{file} in it; `softsolve data` "
            "says where it is published."
        )
        raise DataError(msg)
    own = data / data_set.folder
    for folder in (own, data / own.name, data):
        for suffix in data_set.suffixes:
            if (folder / f"{name}{suffix}").is_file():
                return folder / f"{name}{suffix}"
    msg = (
        f"{data} has no file {file}. `softsolve data` "
        "says which files there must be and where they are published."
    )
    raise DataError(msg)


def read(path: Path, *, unpack: bool = True) -> bytes:
    """Return a file's contents, unpacked where it is gzipped."""
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if unpack and path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        msg = f"{path} cannot be read: {error}. Get the file again."
        raise DataError(msg) from error


def status(data: Path, data_set: DataSet, name: str) -> str:
    """Say whether a file of a data set is there, and as published."""
    try:
        path = find(data, data_set, name)
        return _compare(path, data_set.checksums[name])
    except DataError as error:
        return "missing" if "no file" in str(error) else "corrupt"


def _compare(path: Path, published: str) -> str:
    """Say whether a file is as published, as far as what is known of it tells."""
    kind, _, expected = published.partition(":")
    content = read(path, unpack=kind != "md5")
    if kind == "bytes":
        return "found" if len(content) == int(expected) else "differs"
    if not kind:
        return "found"
    return (
        "verified" if hashlib.new(kind, content).hexdigest() == expected else "differs"
    )
