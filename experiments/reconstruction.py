"""Reconstruct images from released gradients, after Phong et al. 2018, and draw them; gradients from the wire.

In a layer s = Wξ + w₀ the gradient of row j is Σᵢ dᵢⱼ·ξᵢ and that of its constant is Σᵢ dᵢⱼ: their
ratio is a weighted mean of the batch, and the image itself where the batch is one image. Clipping
scales both alike and hides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cloud.assembly import server_for
from common.accounting.budget import calibrate
from common.accounting.releases import Budget
from common.datasets.dataset import Dataset
from common.errors import ConfigurationError, RemoteProtocolError
from common.mechanism.clipping import Clipping
from common.mechanism.clippings.batch_mean import BatchMean
from common.mechanism.clippings.per_sample import PerSample
from common.mechanism.mechanism import Mechanism
from common.mechanism.samplers.shuffled import Shuffled
from common.messages import Effect, GradientArrived, Hello, SendModel
from common.models.linear import LinearModel
from common.models.model import Model
from common.noise.law import NoiseLaw
from common.noise.registry import noise_law
from common.quantities import EdgeId, RunId, Vector
from common.transport.channel import Channel
from common.wire import v1
from common.wire.codec import decode_gradient, decode_model
from common.wire.codings.registry import EVERY, expand
from common.wire.topics import EdgeTopic, every_edge, parse_edge_topic
from edge.worker import EdgeWorker
from mapa.figures import panels, save
from mapa.simulation.delays import arrivals_for
from mapa.simulation.simulator import World, refuse_loudly

Picture = npt.NDArray[np.float64]  # flat, or height × width; values in [0, 1]
Titled = tuple[str, Picture]
Exchange = tuple[SendModel, GradientArrived]
IN_THE_CLEAR = "none"
LAWS = ("exponential-norm", "gamma-norm", "gaussian")
DELTA = 1e-5
PUBLISHED = (PerSample(), BatchMean())  # of the published tables
PSNR_CEILING = 100.0  # dB; float32 allows no more, and a mean needs a finite figure
_WINDOW_STD = 1.5  # Wang et al. 2004: an 11 × 11 Gaussian window
_TRUNCATE = 3.5
_K1, _K2 = 0.01, 0.03
_FIGURES = ("psnr", "ssim", "correlation", "label_accuracy")


@dataclass(frozen=True, slots=True)
class Head:
    """The layer of a model that can be inverted: its rows of the gradient, and their constants."""

    model: Model
    outputs: int
    inputs: int  # without the constant
    sees_pixels: bool  # else: features of the layers before it

    def rows(self, gradient: Vector) -> tuple[Picture, Picture]:
        """Return the gradient of W (outputs × inputs) and of the constants."""
        values = gradient.astype(np.float64)
        if self.sees_pixels:
            matrix = values.reshape(self.outputs, self.inputs + 1)
            return matrix[:, :-1], matrix[:, -1]
        weight, bias = (one for one in self.model.layout if one.name in ("full.weight", "full.bias"))
        return values[weight.slice].reshape(weight.shape), values[bias.slice]

    def invert(self, gradient: Vector) -> Picture:
        """Return the ratio for the row that carries most; zeros where the constant's gradient is 0.

        A class whose samples are all fitted has no gradient, so an observer takes the loudest row.
        """
        weights, constants = self.rows(gradient)
        loudest = int(np.argmax(np.vecdot(weights, weights)))
        if constants[loudest] == 0:
            return np.zeros(self.inputs)
        ratio: Picture = weights[loudest] / constants[loudest]
        return np.clip(ratio, 0, 1) if self.sees_pixels else ratio

    def target(self, gradient: Vector) -> int:
        """Guess a target of the batch: only a sample's own score has a negative derivative.

        With one score (LR) its sign is −y.
        """
        _, constants = self.rows(gradient)
        if self.outputs == 1:
            return -1 if constants[0] > 0 else 1
        return int(np.argmin(constants))


def head_of(model: Model) -> Head:
    """Find the layer to invert; linear models see the pixels there, the CNN its pooled features."""
    if isinstance(model, LinearModel):
        return Head(model, model.outputs, model.inputs - 1, sees_pixels=True)
    shapes = {block.name: block.shape for block in model.layout}
    if "full.weight" in shapes and "full.bias" in shapes:
        outputs, inputs = shapes["full.weight"]
        return Head(model, outputs, inputs, sees_pixels=False)
    raise ConfigurationError(
        f"model.name = {model.name!r}: the attack covers lr, svm, softmax and a fully connected last layer with a bias"
    )


def psnr(truth: Picture, guess: Picture) -> float:
    """Return the peak signal-to-noise ratio in dB for a peak of 1."""
    error = float(np.mean((truth - guess) ** 2))
    return PSNR_CEILING if error == 0 else min(PSNR_CEILING, -10 * math.log10(error))


def ssim(truth: Picture, guess: Picture) -> float:
    """Return the mean structural similarity of two images (height × width)."""
    try:
        from scipy.ndimage import gaussian_filter
    except ImportError as error:
        raise ConfigurationError("SSIM needs scipy: pip install 'mapa-testbed[privacy]'") from error

    smooth: Callable[[Picture], Picture] = partial(gaussian_filter, sigma=_WINDOW_STD, truncate=_TRUNCATE)
    mean_a, mean_b = smooth(truth), smooth(guess)
    var_a = smooth(truth * truth) - mean_a * mean_a
    var_b = smooth(guess * guess) - mean_b * mean_b
    cov = smooth(truth * guess) - mean_a * mean_b
    c1, c2 = _K1**2, _K2**2
    similarity = (2 * mean_a * mean_b + c1) * (2 * cov + c2)
    similarity /= (mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2)
    edge = int(_TRUNCATE * _WINDOW_STD + 0.5)  # where the window leaves the image
    inner = similarity[edge:-edge, edge:-edge] if min(similarity.shape) > 2 * edge else similarity
    return float(inner.mean())


def correlation(truth: npt.NDArray[np.floating], guess: npt.NDArray[np.floating]) -> float:
    """Return |r|: a negative shows the digit as well as a positive; 0 where one is constant."""
    a = truth.ravel().astype(np.float64) - truth.mean()
    b = guess.ravel().astype(np.float64) - guess.mean()
    norm = math.sqrt(float(a @ a) * float(b @ b))
    return abs(float(a @ b)) / norm if norm > 0 else 0.0


def exchanges(world: World, workers: Sequence[EdgeWorker]) -> Iterator[Exchange]:
    """Train with these workers; yield every model that is sent with the gradient that answers it."""
    scenario = world.scenario
    server = server_for(scenario, world.model, world.streams, edges_at_least=len(workers))
    arrivals = arrivals_for(scenario.delays, world.streams)  # devices change no gradient, only its time
    by_id = {worker.edge_id: worker for worker in workers}
    now = 0.0

    def answer(effects: Sequence[Effect]) -> Iterator[Exchange]:
        for effect in effects:
            refuse_loudly(effect)
            if isinstance(effect, SendModel):
                worker = by_id[effect.edge_id]
                made = worker.receive(effect)
                arrivals.send(worker.index, now, made)
                yield effect, made

    for worker in workers:
        yield from answer(server.receive(Hello(edge_id=worker.edge_id)))
    while server.halted is None and (due := arrivals.next()) is not None:
        when, arrived = due
        now = now if when is None else when
        yield from answer(server.receive(arrived))


def models_at(world: World, updates: Sequence[int]) -> list[SendModel]:
    """Return x_t and its ΔS for each t, as an edge would get them from a training of the scenario."""
    if not updates or min(updates) < 1:
        raise ConfigurationError(f"iterations = {list(updates)}: must be one or more integers ≥ 1")
    longest = max(world.scenario.iterations, *updates)
    world = replace(world, scenario=world.scenario.model_copy(update={"iterations": longest}))
    sent_at: dict[int, SendModel] = {}
    for sent, _ in exchanges(world, world.workers()):
        sent_at |= {t: sent for t in updates if t <= sent.version and t not in sent_at}
        if len(sent_at) == len(set(updates)):
            break
    return [sent_at.get(t, sent) for t in updates]  # a t at which no model was sent takes the last one


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconstruction:
    """One cell of the grid: means over several releases, and the picture of one of them."""

    law: str
    epsilon: float | None  # nominal ε of one release; None: no noise
    t: int
    psnr: float | None  # None: features, not pixels
    ssim: float | None
    correlation: float
    label_accuracy: float
    picture: Picture
    truth: Picture
    correlations: Sequence[float]  # |r| of each release
    clipping: str = ""


def nominal_law(name: str, epsilon: float, batch_size: int) -> NoiseLaw:
    """Return the law whose single release is ε-DP when one sample is replaced, a move of ΔS.

    exponential-norm is not, but this is what the paper calls ε. The gaussian's z counts from C/b = ΔS/2,
    so it is twice the least noise multiplier for (ε, 1e-5).
    """
    if name != "gaussian":
        return noise_law(name, {"epsilon": epsilon})
    mechanism = Mechanism(None, batch_size, Shuffled())
    z = calibrate(Budget(epsilon, DELTA), mechanism, releases=1, shard_size=batch_size)
    return noise_law("gaussian", {"noise_multiplier": 2 * z})


def attack(
    world: World,
    *,
    epsilons: Sequence[float],
    iterations: Sequence[int],
    batch_size: int = 1,
    releases: int = 10,
    laws: Sequence[str] = LAWS,
    clippings: Sequence[Clipping] = PUBLISHED,
    retrain: bool = False,
) -> list[Reconstruction]:
    """Reconstruct edge 0's images from its gradients at x_t, one cell for each law, ε, t and clipping.

    One training of the scenario gives x_t and the bound C = bΔS/2 at t, the same for all cells, so that
    they differ in the release alone. With `retrain` each ε has a training of its own, as in the paper's figure.
    ΔS is 2C over the batch size of the attack.
    """
    if batch_size < 1 or releases < 1 or batch_size * releases > len(world.rows[0]):
        images = f"edge 0 has {len(world.rows[0])} images"
        raise ConfigurationError(f"batch_size = {batch_size}, releases = {releases}: {images}")
    head = head_of(world.model)
    trained: dict[float | None, list[SendModel]] = {None: models_at(world, iterations)}
    if retrain:
        trained |= {epsilon: models_at(_trained_with(world, epsilon), iterations) for epsilon in epsilons}
    noised: list[tuple[str, float | None, NoiseLaw | None]] = [(IN_THE_CLEAR, None, None)]
    if world.scenario.private:
        noised += [(name, e, nominal_law(name, e, batch_size)) for e in epsilons for name in laws]
    cells = []
    for clipping in clippings:
        shown = 0  # the same sample in every picture
        for name, epsilon, law in noised:
            rows = []
            for sent in trained.get(epsilon, trained[None]):
                worker = world.workers()[0]
                # shuffled, since a Poisson batch of one is empty as often as not
                worker.mechanism = Mechanism(law, batch_size, Shuffled(), clipping)
                rows.append([_one(world, head, worker, sent, n) for n in range(1, releases + 1)])
            if law is None:
                # a fitted sample of the SVM has no gradient: show one that has, where there is one
                worst = [min(map(_correlation, column)) for column in zip(*rows, strict=True)]
                shown = next((n for n, r in enumerate(worst) if r > 0), 0)
            for t, outcomes in zip(iterations, rows, strict=True):
                cell = Reconstruction(
                    clipping=clipping.name,
                    law=name,
                    epsilon=epsilon,
                    t=t,
                    **{key: _mean([outcome.figures[key] for outcome in outcomes]) for key in _FIGURES},
                    picture=outcomes[shown].guess,
                    truth=outcomes[shown].truth,
                    correlations=tuple(map(_correlation, outcomes)),
                )
                cells.append(cell)
    return cells


def _mean(values: Sequence[float]) -> Any:
    mean = float(np.mean(values))
    return None if math.isnan(mean) else mean


def _trained_with(world: World, epsilon: float) -> World:
    """Return the world whose edges spend this ε on each release; refuse where its law has none."""
    scenario = world.scenario
    if scenario.privacy.epsilon is None:
        raise ConfigurationError(f"privacy.noise = {scenario.privacy.noise!r}: has no ε to train with")
    privacy = scenario.privacy.model_copy(update={"epsilon": (epsilon,)})
    return replace(world, scenario=scenario.model_copy(update={"privacy": privacy}))


@dataclass(frozen=True, slots=True)
class _Outcome:
    """One release: the reconstruction, the sample that it resembles most, and how well; NaN: features, not pixels."""

    guess: Picture
    truth: Picture
    figures: dict[str, float]


def _correlation(outcome: _Outcome) -> float:
    return outcome.figures["correlation"]


def _one(world: World, head: Head, worker: EdgeWorker, sent: SendModel, n: int) -> _Outcome:
    shard, b = worker.shard, worker.mechanism.batch_size
    bound = world.scenario.batch_size * sent.sensitivity / 2  # C
    worker.sequence = n - 1
    released = worker.receive(sent._replace(sensitivity=2 * bound / b)).gradient
    # the observer knows x_t, which depends on no sample of this batch, and takes λx_t off
    gradient = released - np.float32(worker.regularization) * sent.model
    guess = head.invert(gradient)
    batch = worker.mechanism.sampler.draw(worker.streams, worker.index, n, len(shard), b)
    rows = shard.rows[batch]
    truths = [_truth(world, head, sent, row) for row in rows.tolist()]
    nearest = max(truths, key=lambda truth: correlation(truth, guess))
    pixels, shape = head.sees_pixels, world.dataset.shape
    figures = (
        psnr(nearest, guess) if pixels else math.nan,
        ssim(nearest.reshape(shape), guess.reshape(shape)) if pixels else math.nan,
        correlation(nearest, guess),
        float(head.target(gradient) in shard.targets[rows]),
    )
    return _Outcome(guess, nearest, dict(zip(_FIGURES, figures, strict=True)))


def _truth(world: World, head: Head, sent: SendModel, row: int) -> Picture:
    """Return what a perfect inversion of a sample would give: its pixels, or its features."""
    if head.sees_pixels:
        return world.features[row, :-1].astype(np.float64)
    one = slice(row, row + 1)
    exact = world.model.gradients(sent.model, world.features[one], world.targets[one])
    return head.invert(exact.weighted_sum(None))


def grey_shape(dataset: Dataset) -> tuple[int, int]:
    """Return height and width of the data set's images; ConfigurationError where it holds anything else."""
    if len(dataset.shape) != 2 or not dataset.classes:
        what = f"shape {dataset.shape}, {dataset.classes} classes"
        raise ConfigurationError(
            f"data.set = {dataset.name!r}: {what}: only grey images with classes can be drawn"
        )
    return dataset.shape[0], dataset.shape[1]


def draw_grid(cells: Sequence[Reconstruction], shape: tuple[int, int], stem: Path) -> list[Path]:
    """Write one clipping's cells as <stem>.svg and <stem>.png; |r| is the mean correlation with the original."""
    clear = [cell for cell in cells if cell.law == IN_THE_CLEAR]
    noised = [cell for cell in cells if cell.law != IN_THE_CLEAR]
    columns = list(dict.fromkeys((cell.law, cell.t) for cell in noised))
    by_place = {(cell.epsilon, cell.law, cell.t): cell for cell in noised}
    rows: list[tuple[str, list[Titled]]] = []
    for epsilon in list(dict.fromkeys(cell.epsilon for cell in noised)) or [None]:
        first = not rows  # what is the same in every row has its title there alone
        row = [("original" if first else "", clear[0].truth)]
        row += [(f"no noise\nt = {cell.t:,}" if first else "", cell.picture) for cell in clear]
        for law, t in columns:
            cell = by_place[epsilon, law, t]
            row.append((f"{law}\nt = {t:,}\n|r| {cell.correlation:.2f}", cell.picture))
        rows.append(("" if epsilon is None else f"ε = {epsilon:g}", row))
    return _write(rows, shape, stem)


def draw_sightings(
    pairs: Sequence[tuple[str, Picture, Picture]], shape: tuple[int, int], stem: Path
) -> list[Path]:
    """Write (name, reconstruction, nearest training image) rows."""
    titles = [("from the wire", "nearest image"), *[("", "")] * (len(pairs) - 1)]
    named = zip(titles, pairs, strict=True)
    rows = [(name, list(zip(heads, images, strict=True))) for heads, (name, *images) in named]
    return _write(rows, shape, stem)


def _write(rows: Sequence[tuple[str, Sequence[Titled]]], shape: tuple[int, int], stem: Path) -> list[Path]:
    with panels(len(rows), len(rows[0][1]), width=1.1, height=1.4) as (figure, axes):
        for (label, row), line in zip(rows, axes, strict=True):
            for (title, picture), axis in zip(row, line, strict=True):
                pixels = picture.size == np.prod(shape)  # else features
                scale = {"vmin": 0, "vmax": 1} if pixels else {}
                axis.imshow(picture.reshape(shape if pixels else (10, -1)), cmap="gray", **scale)
                axis.set_xticks([])
                axis.set_yticks([])
                axis.grid(visible=False)
                axis.set_title(title, fontsize=6)
            line[0].set_ylabel(label)
        return save(figure, stem)


# -- an honest-but-curious observer of the wire -------------------------------------------------------


@dataclass(slots=True)
class PayloadRecorder:
    """Keeps gradients of a run as files, with the models that they answer."""

    directory: Path
    limit: int
    on_full: Callable[[], None] | None = None
    sealed: bool = False  # behind each message stands a seal, which an observer cannot check
    kept: set[str] = field(default_factory=set)
    _models: dict[EdgeId, bytes] = field(default_factory=dict)

    def model(self, topic: str, payload: bytes) -> None:
        self._models[parse_edge_topic(topic).edge_id] = self._body(payload)

    def _body(self, payload: bytes) -> bytes:
        return expand(payload[: -v1.SEAL_BYTES] if self.sealed else payload, EVERY)

    def gradient(self, topic: str, payload: bytes) -> None:
        """Keep the payload, and the model that it answers where that was seen; a resent one only once."""
        if len(self.kept) >= self.limit:
            return
        edge_id, payload = parse_edge_topic(topic).edge_id, self._body(payload)
        dimension = max(1, (len(payload) - v1.HEADER_BYTES) // 4)
        arrived = decode_gradient(edge_id, payload, dimension)  # what is no gradient is not kept
        stem = f"{edge_id}-{arrived.sequence:08d}"
        model = self._models.get(edge_id)
        if model is not None and decode_model(edge_id, model, dimension).version == arrived.version:
            (self.directory / f"{stem}.model").write_bytes(model)
        (self.directory / f"{stem}.gradient").write_bytes(payload)
        self.kept.add(stem)
        if len(self.kept) == self.limit and self.on_full is not None:
            self.on_full()


def record_payloads(
    channel: Channel,
    run: RunId,
    directory: Path,
    limit: int,
    on_full: Callable[[], None] | None = None,
    *,
    sealed: bool = False,
) -> PayloadRecorder:
    """Keep up to `limit` gradients of a run as `<edge>-<sequence>.gradient`, as they were on the wire, decoded.

    Needs a login that may read every edge's branch: the cloud's own, which is the adversary meant.
    """
    if limit < 1:
        raise ConfigurationError(f"limit = {limit}: must be at least 1")
    directory.mkdir(parents=True, exist_ok=True)
    recorder = PayloadRecorder(directory, limit, on_full, sealed)
    channel.subscribe(every_edge(run, EdgeTopic.MODEL), recorder.model)
    channel.subscribe(every_edge(run, EdgeTopic.GRADIENT), recorder.gradient)
    return recorder


@dataclass(frozen=True, slots=True)
class Sighting:
    arrived: GradientArrived
    picture: Picture
    target: int


def observe(
    head: Head, edge_id: EdgeId, payload: bytes, answered: bytes | None, regularization: float
) -> Sighting:
    """Invert one gradient as it was on the wire; with the model that it answers, λx is taken off first."""
    dimension = head.model.dimension
    arrived = decode_gradient(edge_id, payload, dimension)
    gradient: Vector = arrived.gradient
    if answered is not None:
        gradient = gradient - np.float32(regularization) * decode_model(edge_id, answered, dimension).model
    return Sighting(arrived, head.invert(gradient), head.target(gradient))


def observe_directory(model: Model, directory: Path, *, regularization: float = 0.0) -> list[Sighting]:
    """Invert every `*.gradient` of a directory, in the order of their names."""
    files = sorted(directory.glob("*.gradient"))
    if not files:
        raise ConfigurationError(f"from_payloads = {str(directory)!r}: contains no *.gradient files")
    head, sightings = head_of(model), []
    for path in files:
        edge_id, beside = EdgeId(path.stem.rpartition("-")[0] or path.stem), path.with_suffix(".model")
        answered = beside.read_bytes() if beside.exists() else None
        try:
            sightings.append(observe(head, edge_id, path.read_bytes(), answered, regularization))
        except RemoteProtocolError as error:
            raise ConfigurationError(f"{path}: not a gradient of {model.name!r}: {error}") from error
    return sightings


def nearest_image(dataset: Dataset, picture: Picture) -> tuple[int, float]:
    """Return the training image that a reconstruction resembles most, and |r|."""
    wanted = picture - picture.mean()
    norm = float(np.linalg.norm(wanted))
    if norm == 0:
        return 0, 0.0
    likenesses = []
    for rows in np.split(np.arange(len(dataset.train)), range(8192, len(dataset.train), 8192)):
        pixels = dataset.train.values(rows)
        centred = pixels - pixels.mean(axis=1, keepdims=True)
        likenesses.append(np.abs(centred @ wanted) / (np.linalg.norm(centred, axis=1) * norm + 1e-12))
    r = np.concatenate(likenesses)
    return int(r.argmax()), float(r.max())
