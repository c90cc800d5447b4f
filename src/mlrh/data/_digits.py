"""Digit scenes: a multilabel set composed from scikit-learn's bundled digit images; needs no file and no network."""

from numbers import Integral

import numpy as np
from sklearn.datasets import load_digits
from sklearn.utils import check_random_state

from mlrh.data.containers import MultilabelData

SIZE_PROBABILITIES = (0.4, 0.4, 0.2)  # of scenes with 1, 2 and 3 digits
MAX_SHIFT = 1  # pixels, in either direction
TRAIN_SHARE = 0.7  # of the source images of each digit, the first ones in scikit-learn's order
PARTS = ("all", "train", "test")
N_DIGITS = 10


def load_digit_scenes(n_samples: int = 2000, *, part: str = "all", random_state=0) -> MultilabelData:
    """Images of 8 x 8 pixels that show one to three different digits on top of one another, with the digits as labels.

    A scene has 1, 2 or 3 digits with probability 0.4, 0.4 and 0.2; which ones is uniform. Each digit is a random image
    of `sklearn.datasets.load_digits`, moved by -1, 0 or 1 pixels along each axis (what leaves the frame is lost), and a
    pixel of the scene is the maximum over its digits. For an honest evaluation fit on part="train" and test on
    part="test": their source images are disjoint and their draws independent, also at the same random_state.

    Parameters
    ----------
    n_samples : int, default=2000
        Fewer scenes are the first ones of more.
    part : {"all", "train", "test"}, default="all"
        Source images to draw from: all of them, the first 70% of each digit, or the remaining 30%.
    random_state : int, RandomState instance or None, default=0

    Returns
    -------
    MultilabelData
        X (n_samples, 64) holds the pixels row by row, 0 to 16; Y (n_samples, 10) the digits present.

    Examples
    --------
    >>> from mlrh.data import load_digit_scenes
    >>> scenes = load_digit_scenes(500, part="train")
    >>> scenes
    MultilabelData('digit scenes (train)': 500 rows, 64 features, 10 labels)
    >>> sorted(set(scenes.Y.sum(axis=1).tolist()))
    [1, 2, 3]
    """
    if not isinstance(n_samples, Integral) or isinstance(n_samples, bool) or n_samples < 1:
        raise ValueError(f"n_samples must be a positive integer; got {n_samples!r}.")
    if part not in PARTS:
        raise ValueError(f"part must be one of {', '.join(map(repr, PARTS))}; got {part!r}.")
    source = load_digits()
    draws = _uniforms(n_samples, part, random_state)
    present, digits, shares, shifts = _scene_plan(draws)
    by_digit = [_part_of(np.flatnonzero(source.target == digit), part) for digit in range(N_DIGITS)]
    counts = np.array([len(images) for images in by_digit])
    starts = np.cumsum(counts) - counts
    images = source.images[np.concatenate(by_digit)[starts[digits] + (shares * counts[digits]).astype(np.int64)]]
    X = _overlay(images, shifts, present).reshape(n_samples, -1)
    Y = np.zeros((n_samples, N_DIGITS), np.int8)
    np.put_along_axis(Y, digits, present.astype(np.int8), axis=1)
    labels = tuple(f"digit {digit}" for digit in range(N_DIGITS))
    return MultilabelData(X, Y, tuple(source.feature_names), labels, f"digit scenes ({part})")


def _uniforms(n_samples, part, random_state):
    """Random numbers (n_samples, 1 + 10 + 3 * 3), from a stream of its own for each part.

    With one stream for all, train and test would have the same label sets at the same random_state.
    """
    seeds = check_random_state(random_state).randint(2**32, size=len(PARTS), dtype=np.uint32)
    stream = np.random.RandomState(seeds[PARTS.index(part)])
    return stream.random_sample((n_samples, 1 + N_DIGITS + 3 * len(SIZE_PROBABILITIES)))


def _scene_plan(draws):
    """What each of the up to three places of a scene holds: present, digit, share of its images passed over, shift."""
    n_places = len(SIZE_PROBABILITIES)
    of_size, of_order, of_image, of_shift = np.split(draws, np.cumsum([1, N_DIGITS, n_places]), axis=1)
    sizes = 1 + np.searchsorted(np.cumsum(SIZE_PROBABILITIES)[:-1], of_size[:, 0], side="right")
    present = np.arange(n_places) < sizes[:, None]
    digits = np.argsort(of_order, axis=1)[:, :n_places]
    shifts = np.floor(of_shift * (2 * MAX_SHIFT + 1)).astype(np.int64) - MAX_SHIFT
    return present, digits, of_image, shifts.reshape(-1, n_places, 2)


def _part_of(images, part):
    cut = round(TRAIN_SHARE * len(images))
    return {"all": images, "train": images[:cut], "test": images[cut:]}[part]


def _overlay(images, shifts, present):
    """Pixelwise maximum over the places present: images (n_samples, 3, 8, 8) -> (n_samples, 8, 8)."""
    side = images.shape[-1]
    padded = np.pad(images, [(0, 0), (0, 0), (MAX_SHIFT, MAX_SHIFT), (MAX_SHIFT, MAX_SHIFT)])
    # Pixel i of an image moved by d is pixel i - d of the original.
    pixels = np.arange(side) + MAX_SHIFT - shifts[..., None]
    rows, columns = pixels[:, :, 0, :, None], pixels[:, :, 1, None, :]
    scene, place = np.indices(present.shape)
    moved = padded[scene[..., None, None], place[..., None, None], rows, columns]
    return (moved * present[..., None, None]).max(axis=1)
