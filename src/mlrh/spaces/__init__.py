"""Which label sets are possible, and exact answers about P(y | scores): arrays in, arrays out."""

from mlrh.spaces._kernels.expected_metrics import metric_function
from mlrh.spaces.base import LabelSetDistribution, LabelSpace
from mlrh.spaces.cardinality import CardinalitySpace, SizesOfTraining
from mlrh.spaces.groups import GroupSpace
from mlrh.spaces.hierarchy import HierarchySpace
from mlrh.spaces.listed import listed_sets
from mlrh.spaces.mixture import Mixture, geometric_mean
from mlrh.spaces.observed import ObservedSpace, SetsOfTraining
from mlrh.spaces.open import OpenSpace, SeenSetsOfTraining

__all__ = [
    "NAMES",
    "CardinalitySpace",
    "GroupSpace",
    "HierarchySpace",
    "LabelSetDistribution",
    "LabelSpace",
    "Mixture",
    "ObservedSpace",
    "OpenSpace",
    "geometric_mean",
    "listed_sets",
    "metric_function",
    "resolve",
]

NAMES = ("cardinality", "observed", "open")  # what `label_space=` of an estimator takes besides an instance


def resolve(
    label_space,
    *,
    min_labels="auto",
    max_labels="auto",
    size_bias=False,
    set_bias_strength="auto",
    n_jobs=None,
    sizes_of_y=None,
    counts=None,
):
    """An object whose `for_targets` gives the label space of training rows, from the parameters of an estimator.

    label_space is a name or an instance. sizes_of_y, a pair, replaces the limits of a space that is given by name: a y
    with one class per row has the sizes (1, 1). counts (n_samples,) says for how many training rows each row of Y
    stands that `for_targets` will be given; None: for itself.
    """
    limits = (min_labels, max_labels) if sizes_of_y is None else sizes_of_y
    if label_space == "cardinality":
        return SizesOfTraining(limits[0], limits[1], size_bias, n_jobs)
    if label_space == "observed":
        return SetsOfTraining(*limits)
    if label_space == "open":
        return SeenSetsOfTraining(limits[0], limits[1], set_bias_strength, n_jobs, counts)
    if (min_labels, max_labels, size_bias, set_bias_strength) != ("auto", "auto", False, "auto"):
        raise ValueError(
            "min_labels, max_labels, size_bias and set_bias_strength belong to the label spaces that are given by "
            f"name; an instance such as {label_space!r} says for itself which sets it has and what it learns."
        )
    return label_space
