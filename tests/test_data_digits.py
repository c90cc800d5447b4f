"""The digit scenes are what their docstring says, judged by a search through all source images and shifts."""

from functools import cache, reduce
from itertools import product

import numpy as np
import pytest
from scipy.stats import chisquare
from sklearn.datasets import load_digits

from mlrh.data import load_digit_scenes


@cache
def moved_images():
    """Source indices and images moved by up to one pixel of each digit, nine in a row from the same source."""
    source = load_digits()
    moved = {digit: [] for digit in range(10)}
    for index, (image, digit) in enumerate(zip(source.images, source.target, strict=True)):
        for down, right in product((-1, 0, 1), repeat=2):
            framed = np.zeros((10, 10))
            framed[1 + down : 9 + down, 1 + right : 9 + right] = image
            moved[int(digit)].append((index, framed[1:9, 1:9].ravel()))
    return {digit: (np.array([i for i, _ in pairs]), np.array([x for _, x in pairs])) for digit, pairs in moved.items()}


def explanations(pixels, digits):
    """Every choice of one source index per digit whose moved images have these pixels as their maximum."""
    candidates = []
    for digit in digits:
        index, images = moved_images()[digit]
        fits = (images <= pixels).all(axis=1)
        candidates.append(list(zip(index[fits].tolist(), images[fits], strict=True)))
    return [
        tuple(index for index, _ in choice)
        for choice in product(*candidates)
        if np.array_equal(reduce(np.maximum, [image for _, image in choice]), pixels)
    ]


def sources_of_single_digit_scenes(scenes):
    rows = np.flatnonzero(scenes.Y.sum(axis=1) == 1)
    found = [explanations(scenes.X[row], np.flatnonzero(scenes.Y[row])) for row in rows]
    return [{index for (index,) in choices} for choices in found]


def test_every_scene_is_the_maximum_of_one_moved_source_image_per_label():
    scenes = load_digit_scenes(60, random_state=3)
    for pixels, labels in zip(scenes.X, scenes.Y, strict=True):
        assert explanations(pixels, np.flatnonzero(labels))


def test_no_other_single_digit_explains_a_single_digit_scene():
    scenes = load_digit_scenes(100, random_state=5)
    for row in np.flatnonzero(scenes.Y.sum(axis=1) == 1):
        explained = [digit for digit in range(10) if explanations(scenes.X[row], [digit])]
        assert explained == np.flatnonzero(scenes.Y[row]).tolist()


def test_sizes_follow_the_stated_probabilities_and_digits_are_equally_frequent():
    Y = load_digit_scenes(20_000).Y
    observed = np.bincount(Y.sum(axis=1))
    assert observed[0] == 0
    assert chisquare(observed[1:], np.array([0.4, 0.4, 0.2]) * 20_000).pvalue > 1e-3
    counts = Y.sum(axis=0)
    # Labels of one scene exclude each other, so this variance is below the one that chisquare assumes.
    assert chisquare(counts).pvalue > 1e-3


def test_all_nine_shifts_occur_equally_often():
    scenes = load_digit_scenes(2000)
    counts = np.zeros(9, int)
    for row in np.flatnonzero(scenes.Y.sum(axis=1) == 1):
        _, images = moved_images()[int(np.argmax(scenes.Y[row]))]
        (place,) = np.flatnonzero((images == scenes.X[row]).all(axis=1))
        counts[place % 9] += 1
    assert chisquare(counts).pvalue > 1e-3


def test_train_and_test_share_no_source_image_and_all_draws_from_both():
    target = load_digits().target
    rank = np.empty(len(target), int)
    for digit in range(10):
        rank[target == digit] = np.arange(np.count_nonzero(target == digit))
    share = rank / np.bincount(target)[target]
    parts = ("all", "train", "test")
    found, train, test = (sources_of_single_digit_scenes(load_digit_scenes(600, part=part)) for part in parts)
    assert all(min(share[list(choices)]) < 0.7 for choices in train)
    assert all(max(share[list(choices)]) > 0.69 for choices in test)
    assert not set.union(*train) & set.union(*test)
    assert all(any(choices & set.union(*own) for choices in found) for own in (train, test))


def test_a_seed_gives_the_same_scenes_again_and_another_seed_others():
    first, again, other = (load_digit_scenes(50, random_state=seed) for seed in (7, 7, 8))
    assert np.array_equal(first.X, again.X) and np.array_equal(first.Y, again.Y)
    assert not np.array_equal(first.Y, other.Y)


def test_fewer_scenes_are_the_first_of_more():
    few, many = load_digit_scenes(20), load_digit_scenes(50)
    assert np.array_equal(few.X, many.X[:20]) and np.array_equal(few.Y, many.Y[:20])


def test_parts_have_independent_label_sets_at_the_same_seed():
    train, test = load_digit_scenes(1000, part="train"), load_digit_scenes(1000, part="test")
    # Two independent scenes agree with probability .4^2/10 + .4^2/45 + .2^2/120 = 0.02.
    assert (train.Y == test.Y).all(axis=1).mean() < 0.05


def test_a_random_state_instance_moves_on_between_calls():
    random_state = np.random.RandomState(0)
    first, second = (load_digit_scenes(50, random_state=random_state) for _ in range(2))
    assert np.array_equal(first.X, load_digit_scenes(50, random_state=0).X)
    assert not np.array_equal(first.X, second.X)


def test_names_and_types_describe_the_columns():
    scenes = load_digit_scenes(5)
    assert scenes.X.dtype == np.float64 and scenes.Y.dtype == np.int8
    assert list(scenes.feature_names) == load_digits().feature_names
    assert scenes.label_names[3] == "digit 3" and len(scenes.label_names) == 10


RULES = {"n_samples": "be a positive integer", "part": "be one of 'all', 'train', 'test'"}
WRONG = {"n_samples": [0, -1, 2.5, "many", True, None], "part": ["validation", None, ["train"]]}


@pytest.mark.parametrize("name, value", [(name, value) for name, values in WRONG.items() for value in values])
def test_a_number_that_is_no_positive_integer_and_an_unknown_part_are_errors(name, value):
    with pytest.raises(ValueError, match=f"{name} must {RULES[name]}; got"):
        load_digit_scenes(**{name: value})
