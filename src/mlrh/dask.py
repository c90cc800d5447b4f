"""The linear classifier on a Dask cluster: rows stay in partitions on the workers, sums over them travel.

A fit is that of `MLRHClassifier.fit_chunks`, with other rows: a partition is one chunk, held by a worker, and a pass is
one graph. Its tasks ask the partitions where they lie, add up the answers of each worker there, and then those of the
workers, by a tree whose root is the client. Everything on the workers is the result of a task, nothing is changed in
place: what a lost worker held is computed again.
"""

import time
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from mlrh import _sklearn
from mlrh.estimators import MLRHClassifier, _chunks, _features
from mlrh.estimators._base import NOTED_OF_X, warn_where_undetermined
from mlrh.fitting.design import FeatureSums
from mlrh.fitting.rows import SummedRows, added, answers_of

try:
    import dask
    import dask.array
    import distributed
    from dask.delayed import Delayed, delayed
except ImportError as error:
    raise ImportError(
        'mlrh.dask needs Dask; install it with: pip install "dask[array]>=2025.1" "distributed>=2025.1"'
    ) from error

__all__ = ["DaskMLRHClassifier"]

LOOK_SECONDS = 5.0  # between two looks at workers, while an answer is waited for
PAUSED_SECONDS = 60.0  # of a pause that is taken for the end: a worker that writes partitions to disk soon goes on
FAN_IN = 8  # partitions that one task asks, and answers that one adds up: these lie in memory at a time
PLACES_SECONDS = 1.0  # for which the places of the partitions are taken for known: asking takes milliseconds
COPIED_BYTES = 2**24  # of all copies of a question in a graph: 16 MB, which go through the scheduler


def _refused(model):
    raise AttributeError("On a cluster, fit takes all rows at once; partial_fit and fit_chunks are for to_local().")


class DaskMLRHClassifier(MLRHClassifier):
    """MLRHClassifier, fitted to rows on the workers of a Dask cluster: the model is that of all rows in one place.

    `fit` takes Dask collections, and what it finds is the optimum that `MLRHClassifier.fit` finds for the same rows in
    memory. Predictions are lazy, a task for each partition; `to_local` gives the plain classifier, for predictions here
    and for `mlrh.persistence.save`. The workers need mlrh installed.

    Partitions are read and checked once and stay on their workers; a worker with too little memory writes some of them
    to its disk, as Dask does. Each evaluation of the objective sends `coef_` to every worker once and gets sums of that
    size back. The solver's own vectors, some 25 arrays as large as `coef_`, are in the memory of this process.

    Parameters
    ----------
    client : distributed.Client, default=None
        None: the current client of this process.
    label_space, min_labels, max_labels, size_bias, set_bias_strength, C, l1_ratio, fit_intercept, solver, mm_step, \
    tol, max_iter, warm_start, decision, answer_sizes
        As of MLRHClassifier.
    n_jobs : int, default=None
        Threads of one task. None: 1, since a worker runs as many tasks at a time as it has threads.
    verbose : int, default=0
        1 shows passes, the objective and the time left.

    Attributes
    ----------
    coef_, intercept_, classes_, label_space_, ...
        As of MLRHClassifier, without support_.
    n_samples_ : int
        Rows that count: of positive weight, with a label that is known.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from distributed import Client
    >>> from mlrh.dask import DaskMLRHClassifier
    >>> X = da.from_array(np.array([[0.0, 0.1], [0.2, 1.0], [1.0, 0.0], [0.9, 1.1]]), chunks=(2, 2))
    >>> Y = da.from_array(np.array([[1, 0, 0], [1, 0, 1], [0, 1, 0], [0, 1, 1]]), chunks=(2, 3))
    >>> with Client(processes=False, dashboard_address=":0") as client:
    ...     clf = DaskMLRHClassifier(C=10).fit(X, Y)
    ...     clf.predict(X).compute()
    array([[1, 0, 0],
           [1, 0, 1],
           [0, 1, 0],
           [0, 1, 1]])
    """

    def __init__(
        self,
        *,
        client=None,
        label_space="cardinality",
        min_labels="auto",
        max_labels="auto",
        size_bias=False,
        set_bias_strength="auto",
        C=1.0,
        l1_ratio=0.0,
        fit_intercept=True,
        solver="auto",
        mm_step="safe",
        tol=1e-5,
        max_iter=1000,
        warm_start=False,
        decision="exact_match",
        answer_sizes=None,
        n_jobs=None,
        verbose=0,
    ):
        self.client = client
        self.label_space = label_space
        self.min_labels = min_labels
        self.max_labels = max_labels
        self.size_bias = size_bias
        self.set_bias_strength = set_bias_strength
        self.C = C
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.mm_step = mm_step
        self.tol = tol
        self.max_iter = max_iter
        self.warm_start = warm_start
        self.decision = decision
        self.answer_sizes = answer_sizes
        self.n_jobs = n_jobs
        self.verbose = verbose

    _parameter_constraints = {**MLRHClassifier._parameter_constraints, "client": [None, distributed.Client]}

    partial_fit = available_if(_refused)(MLRHClassifier.partial_fit)
    fit_chunks = available_if(_refused)(MLRHClassifier.fit_chunks)

    @_sklearn.fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y=None, sample_weight=None, *, classes=None) -> Self:
        """Fit to the rows of Dask collections.

        Parameters
        ----------
        X : Dask array or DataFrame of shape (n_samples, n_features), or list of delayed chunks
            Blocks of an array may be NumPy arrays or CSR matrices. A delayed chunk, of dask.delayed or a future, is a
            tuple (X, Y) or (X, Y, weight) of arrays, CSR matrices or DataFrames.
        y : Dask array or DataFrame
            In as many partitions as X, of as many rows each. An indicator matrix, NaN where a label is unknown; with
            classes, one class per row. Not given for delayed chunks, which hold theirs.
        sample_weight : Dask array or Series of shape (n_samples,), optional
            In the partitions of X.
        classes : array-like, optional
            All labels or classes, as for `fit_chunks`: needed where y holds label sets or one class per row.

        Returns
        -------
        self
        """
        self._check_penalty()
        parts, client = _parts_of(X, y, sample_weight), self._found_client()
        with _chunks.progress_of(self) as progress:
            held = _HeldRows(client, parts, self._plain(), classes, progress)
            look, noting = held.look()
            problem = self._problem(None, look.Y, look.counts, look.places, look.form, noting, counts=look.counts)
            if not look.form.is_one_class_per_row:
                warn_where_undetermined(problem)
            problem, start = self._tuned_on_sample(problem, look.features.n_samples, held.sampled)
            options = self._options_of_sums(problem, look.features)
            rows = _RowsOnWorkers(held, look.features, problem.space, n_jobs=self.n_jobs or 1, **options)
            self._solve_sums(problem, rows, start, progress)
        self.n_samples_ = look.features.n_samples
        return self

    def to_local(self) -> MLRHClassifier:
        """The same classifier as a MLRHClassifier, fitted if this one is."""
        local, own = self._plain(), {*self.get_params(deep=False), "n_samples_"}
        vars(local).update({name: value for name, value in vars(self).items() if name not in own})
        return local

    def predict(self, X):
        """Label sets of the rows of X, lazily: a Dask DataFrame where X and the y of training are, else a Dask array.

        A sparse y is answered by a dense array. Where y was a list of label sets, the entries of the array are sets.
        """
        check_is_fitted(self)
        form = self._targets
        if form.kind == "frame" and hasattr(X, "map_partitions"):
            meta = form.decode(np.zeros((0, len(self.classes_)), np.int8))
            return X.map_partitions(_framed, self.to_local(), meta=meta)
        dtypes: dict = {"classes": self.classes_.dtype, "sets": object}
        shape = () if form.kind in dtypes else (len(self.classes_),)
        return self._array(X, "predict", shape, np.dtype(dtypes.get(form.kind, form.dtype)))

    def predict_proba(self, X):
        """Marginals P(y_k = 1 | x), or P(class | x), of the rows of X: a lazy Dask array (n_samples, n_labels)."""
        check_is_fitted(self)
        return self._array(X, "predict_proba", (len(self.classes_),))

    def predict_log_proba(self, X):
        """Logarithms of predict_proba, a lazy Dask array."""
        check_is_fitted(self)
        return self._array(X, "predict_log_proba", (len(self.classes_),))

    def decision_function(self, X):
        """Scores of the rows of X, a lazy Dask array (n_samples, n_labels); for two classes as y, (n_samples,)."""
        check_is_fitted(self)
        is_single = self._targets.is_one_class_per_row and len(self.classes_) == 2
        return self._array(X, "decision_function", () if is_single else (len(self.coef_),))

    def distribution(self, X) -> list[Delayed]:  # type: ignore[override]
        """The distributions of the label sets of the rows of X: a delayed LabelSetDistribution for each partition."""
        check_is_fitted(self)
        return self._answers(X, "distribution")

    def score(self, X, y, sample_weight=None) -> float:
        """Share of rows whose predicted set is exactly right; computed on the cluster."""
        check_is_fitted(self)
        client, model = self._found_client(), _literal(self.to_local())
        shares = [delayed(_share_right)(part, model) for part in _parts_of(X, y, sample_weight)]
        right, total = np.sum(client.gather(client.compute(shares)), axis=0)
        return float(right / total)

    def _array(self, X, method, shape, dtype=None):
        """The answers of a method to the partitions of X as a Dask array (n_samples, *shape)."""
        answers = self._answers(X, method)
        dtype = dtype or np.dtype(np.float32 if getattr(X, "dtype", None) == np.float32 else np.float64)
        n_rows = X.chunks[0] if isinstance(X, dask.array.Array) else [np.nan] * len(answers)
        own = zip(answers, n_rows, strict=True)
        return dask.array.concatenate(
            [dask.array.from_delayed(answer, (n, *shape), dtype) for answer, n in own], allow_unknown_chunksizes=True
        )

    def _answers(self, X, method):
        """A delayed answer of a method of the plain classifier for each partition of X."""
        model = _literal(self.to_local())
        return [delayed(_asked)(part, model, method) for part in _blocks(X, "X")]

    def _plain(self):
        """A MLRHClassifier with the same parameters, not fitted."""
        parameters = self.get_params(deep=False)
        del parameters["client"]
        return MLRHClassifier(**parameters)

    def _found_client(self):
        if self.client is not None:
            return self.client
        try:
            return distributed.get_client()
        except ValueError as error:
            raise ValueError(
                "DaskMLRHClassifier needs a Dask client and there is none; start one, for example with "
                "distributed.Client(), or give it as client=."
            ) from error

    def __sklearn_clone__(self):
        # A client can't be copied: clones share it.
        return type(self)(client=self.client, **clone(self._plain()).get_params(deep=False))

    def __getstate__(self):
        # Where the file is loaded, the client is the one that is current there.
        return {**super().__getstate__(), "client": None}


# From collections to partitions: a Delayed (X, Y[, weight]) or a list of a Delayed for each


def _parts_of(X, y, weight):
    """The partitions of all rows, checked to be as many in X, y and the weights."""
    if isinstance(X, list | tuple):
        if y is not None or weight is not None:
            raise ValueError(
                "Delayed chunks hold their own labels and weights, (X, Y) or (X, Y, weight); leave out y and "
                "sample_weight."
            )
        if not X or not all(isinstance(part, Delayed | distributed.Future) for part in X):
            raise ValueError(f"A list must hold delayed chunks, at least one; got {_kinds_of(X)}.")
        return list(X)
    if y is None:
        raise ValueError("y must be given with X, as a Dask array or DataFrame; got None.")
    named = {"X": X, "y": y, **({} if weight is None else {"sample_weight": weight})}
    blocks = {name: _blocks(collection, name) for name, collection in named.items()}
    n_blocks = {name: len(own) for name, own in blocks.items()}
    if len(set(n_blocks.values())) > 1:
        counts = ", ".join(f"{n} of {name}" for name, n in n_blocks.items())
        raise ValueError(
            f"X, y and sample_weight must lie in the same partitions; got {counts}. Use rechunk or repartition."
        )
    return [list(own) for own in zip(*blocks.values(), strict=True)]


def _kinds_of(values):
    names = sorted({type(value).__name__ for value in values})
    return f"{' and '.join(names)} objects" if names else "an empty one"


def _blocks(collection, name):
    """The partitions of a Dask array or DataFrame along its rows, each Delayed."""
    if isinstance(collection, dask.array.Array):
        whole_rows = collection.rechunk(dict.fromkeys(range(1, collection.ndim), -1))
        return whole_rows.to_delayed().ravel().tolist()
    if not hasattr(collection, "to_delayed"):
        raise TypeError(
            f"{name} must be a Dask array or DataFrame; got a {type(collection).__name__}. For rows in memory use "
            "MLRHClassifier, or to_local() of a fitted classifier."
        )
    return list(collection.to_delayed())


def _literal(value):
    """The value as a delayed object, which is sent once to each worker that needs it."""
    return delayed(value, traverse=False)


# On the workers


@dataclass(frozen=True, eq=False)
class _Partition:
    """The rows of a partition that count, with their numbers; names and number of the features, and the form of y."""

    X: Any
    Y: np.ndarray
    weights: np.ndarray
    numbers: np.ndarray
    noted: dict[str, Any]
    form: Any

    @property
    def rows(self):
        return self.X, self.Y, self.weights

    def __sizeof__(self):
        # Dask asks for it, to leave partitions where they are, and to write them to disk before memory runs out.
        arrays = (self.X.data, self.X.indices, self.X.indptr) if sparse.issparse(self.X) else (self.X,)
        return sum(array.nbytes for array in (*arrays, self.Y, self.weights, self.numbers))


@dataclass(frozen=True)
class _Seen:
    """What a look at some partitions tells: of the first one its number, features and form of y; sums over all."""

    number: int
    noted: dict[str, Any]
    form: Any
    sizes: dict[int, int]  # number of rows that count, by partition
    features: FeatureSums | None
    kinds: _chunks.Kinds | None


def _checked(part, model, classes):
    """The _Partition of a chunk (X, y) or (X, y, weight), everything checked; None where it has no row."""
    if not isinstance(part, tuple | list) or len(part) not in (2, 3):
        raise ValueError(f"a chunk must be a tuple (X, Y) or (X, Y, weight); got a {type(part).__name__}.")
    X, y, weight = (*part, None)[:3]
    if X.shape[0] == 0:
        return None
    noting = copy(model)
    X, form = _features.validated(noting, X, reset=True), _chunks.form_of(y, classes)
    Y, weights = _chunks.checked_targets(noting, X, form, y, weight)
    noted = {name: vars(noting)[name] for name in NOTED_OF_X if name in vars(noting)}
    X, Y, weights, numbers = _chunks.those_that_count(X, Y, weights)
    return _Partition(X, Y, weights, numbers, noted, form)


def _look(partition, number, model):
    """What a partition tells, None where it has no row."""
    if partition is None:
        return None
    X, Y, weights = partition.rows
    about = (number, partition.noted, partition.form, {number: len(Y)})
    if len(Y) == 0:
        return _Seen(*about, None, None)
    kinds = _chunks.Kinds(model._space_of(Y, partition.form))
    kinds.add(Y, number, partition.numbers)
    return _Seen(*about, _chunks.plus_sums(None, X, weights, Y.shape[1], model.fit_intercept), kinds)


def _join(looks):
    """One _Seen of several, in order; a ValueError where partitions don't fit together. None where there is no row."""
    looks = [look for look in looks if look is not None]
    if not looks:
        return None
    first, sizes, features, kinds = looks[0], {}, None, None
    for look in looks:
        _check_alike(first, look)
        sizes.update(look.sizes)
        if look.kinds is not None:
            features = look.features if features is None else features.plus(look.features)
            kinds = kinds or _chunks.Kinds(look.kinds.space)  # a new one: results of tasks must not be changed
            kinds.join(look.kinds)
    return replace(first, sizes=sizes, features=features, kinds=kinds)


def _check_alike(first, other):
    """Raise a ValueError unless two partitions have the same features and labels, in the same form."""
    pair = f"partitions {first.number} and {other.number}"
    n_features = [look.noted["n_features_in_"] for look in (first, other)]
    if n_features[0] != n_features[1]:
        raise ValueError(
            f"All partitions must have the same features; {pair} have {n_features[0]} and {n_features[1]}."
        )
    names = [list(look.noted.get("feature_names_in_", ())) for look in (first, other)]
    if names[0] != names[1]:
        raise ValueError(f"All partitions must have the same features, in the same order; those of {pair} differ.")
    forms = [(look.form.kind, look.form.classes.tolist()) for look in (first, other)]
    if forms[0] != forms[1]:
        raise ValueError(f"All partitions of y must have the same labels, in the same form; those of {pair} differ.")


def _in_form(partition, form):
    """The partition without the classes, or labels of sets, that no row has."""
    if partition is None:
        return None
    return replace(partition, Y=_chunks.in_form(partition.form, form, partition.Y), form=form)


def _some_rows(partition, numbers):
    X, Y, weights = partition.rows
    return X[numbers], Y[numbers], weights[numbers]


@dataclass(frozen=True)
class _Question:
    """What is asked of every partition at one place: a method of RowsInMemory, biases of the space, other arguments."""

    method: str
    bias: np.ndarray
    arguments: tuple


def _answer(partitions, common, question):
    """The sums over the rows of partitions, None where none counts; common are (FeatureSums, space, options)."""
    whole, space, options = common
    space, total = space.with_bias(question.bias) if space.n_biases else space, None
    for partition in partitions:
        if partition is not None and len(partition.Y):
            for answer in answers_of(partition.rows, whole, space, question.method, *question.arguments, **options):
                total = added(total, answer)
    return total


def _total(answers):
    """The sum of answers; none of them is changed."""
    total = None
    for answer in answers:
        if answer is not None:
            total = added(total, answer)
    return total


def _framed(X, model):
    """What the plain classifier predicts for a partition, as a DataFrame."""
    return model.predict(X)


def _asked(X, model, method):
    """The answer of a method of the plain classifier to a partition, as an array; label sets as one of objects."""
    answer = getattr(model, method)(X)
    if sparse.issparse(answer):
        return answer.toarray()
    if hasattr(answer, "columns"):  # where y of training was a DataFrame
        return answer.to_numpy()
    if isinstance(answer, list):
        sets = np.empty(len(answer), object)
        sets[:] = answer
        return sets
    return answer


def _share_right(part, model):
    """Weight of the rows of a chunk that are predicted exactly, and of all of them."""
    X, y, weight = (*part, None)[:3]
    total = float(X.shape[0] if weight is None else np.sum(weight))
    return (model.score(X, y, weight) * total, total) if total else (0.0, 0.0)


# Here


class _HeldRows:
    """The partitions of the rows as the workers hold them: futures of _Partition or None, for empty ones."""

    def __init__(self, client, parts, model, classes, progress):
        self._client, self._model, self._progress = client, model, progress
        sent = _literal(model)
        self._partitions = client.compute([delayed(_checked)(part, sent, classes) for part in parts])
        self._sizes: dict[int, int] = {}
        self._threads: dict[str | None, int] = {}  # of the workers
        self._places: Any = (-np.inf, [])  # when they were asked for, and each worker's partitions in lists
        self._last: list = []  # futures of the last pass

    def look(self):
        """The Look at all rows, and a copy of the model that has noted the features."""
        self._progress.begin()
        model = _literal(self._model)
        looks = [delayed(_look)(own, number, model) for number, own in enumerate(self._partitions)]
        seen = self.result(*_tree(_join, looks))
        if seen is None:
            raise ValueError("X must have at least one row; all partitions are empty.")
        self._sizes = seen.sizes
        look = _chunks.looked(self._model, seen.features, seen.form, seen.kinds, "partition {}".format)
        if len(look.form.classes) < len(seen.form.classes):
            form = _literal(look.form)
            self._partitions = self._client.compute([delayed(_in_form)(own, form) for own in self._partitions])
        noting = copy(self._model)
        vars(noting).update(seen.noted)
        return look, noting

    def sampled(self, numbers):
        """X, Y and weights of the rows with these numbers, counted over all partitions, in their order."""
        ascending, begin, parts = np.sort(numbers), 0, []
        for number, n_rows in sorted(self._sizes.items()):
            first, last = np.searchsorted(ascending, [begin, begin + n_rows])
            if first < last:
                parts.append(delayed(_some_rows)(self._partitions[number], ascending[first:last] - begin))
            begin += n_rows
        return _chunks.stacked(self.result(delayed(list)(parts)), numbers)

    def sent(self, value):
        """A future of the value, which each worker gets once and keeps."""
        return self._client.compute(_literal(value))

    def ask(self, common, question):
        """The sum of the answers of all partitions to a question."""
        self._progress.begin()
        places, of_workers = self._by_worker(), []
        asked = _in_graph(question, [len(tasks) for _, tasks in places])
        for worker, tasks in places:
            # Any worker may do what a lost one was asked.
            place = {} if worker is None else {"workers": [worker], "allow_other_workers": True}
            with dask.annotate(**place):
                answers = [delayed(_answer)(partitions, common, asked) for partitions in tasks]
                of_workers += _tree(_total, answers)
        # The root of the tree is here: one task, and a way from worker to worker, less to wait for.
        return _total(self._results(_tree(_total, of_workers, FAN_IN)))

    def _by_worker(self) -> list[tuple[str | None, list[list]]]:
        """Each worker that holds partitions, and these in lists, one for a task; None for those computed again.

        Where partitions have moved since they were last asked for, Dask moves tasks or partitions.
        """
        since, places = self._places
        if time.monotonic() - since > PLACES_SECONDS:
            places = self._asked_places()
            self._places = (time.monotonic(), places)
        return places

    def _asked_places(self):
        holders = self._client.who_has(self._partitions)
        held: dict[str | None, list] = {}
        for partition in self._partitions:
            held.setdefault(next(iter(holders.get(partition.key, ())), None), []).append(partition)
        if not held.keys() <= {None, *self._threads}:
            self._threads = self._client.nthreads()
        return [(worker, _tasks(own, self._threads.get(worker, 1))) for worker, own in held.items()]

    def result(self, answer):
        """The result of a delayed answer, in one graph; an error says which partition it comes from."""
        return self._results([answer])[0]

    def _results(self, answers):
        """The results of delayed answers, in one graph, as `result`."""
        # Coefficients are a part of the graph, not scattered, so that a lost worker doesn't take them along; Dask would
        # warn of their size.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TiB"}):
            futures = self._client.compute(answers, optimize_graph=False)
        # Those of the pass before are given up only now. A client sends at most one message in 10 ms: to give them up
        # at once would be one, and this graph would wait for 10 ms.
        self._last = futures
        try:
            return self._awaited(futures)
        except Exception as error:
            self._client.cancel(futures)
            raise self._explained(error) from error
        except BaseException:  # Ctrl-C: workers begin no other task of the graph
            self._client.cancel(futures)
            raise

    def _awaited(self, futures):
        """The results of futures; a MemoryError where a worker is paused for so long that it may stay so."""
        paused: dict[str, float] = {}
        while True:
            with suppress(TimeoutError), self._client.as_current():
                distributed.wait(futures, timeout=LOOK_SECONDS)
            if all(future.done() for future in futures):
                return self._client.gather(futures)
            now, before = time.monotonic(), paused
            paused = {worker: before.get(worker, now) for worker in self._client.run_on_scheduler(_paused_workers)}
            stuck = [worker for worker, since in paused.items() if now - since > PAUSED_SECONDS]
            if stuck:
                raise MemoryError(
                    f"the memory of worker {stuck[0]} has been full for {PAUSED_SECONDS:.0f} s, so that Dask has "
                    "paused it; use smaller partitions, more workers, or workers with more memory"
                )

    def _explained(self, error):
        """The error in a sentence that names the partition, if it is that of one."""
        for number, future in enumerate(self._partitions):
            if future.status == "error":
                return _sentence(f"Partition {number}", future.exception())
        return _sentence("The fit", error) if isinstance(error, GONE) else error


GONE = (distributed.KilledWorker, MemoryError, distributed.CancelledError)


def _paused_workers(dask_scheduler):
    """Addresses of the workers that take no task because their memory is full."""
    return [worker.address for worker in dask_scheduler.workers.values() if worker.status.name == "paused"]


def _sentence(what, error):
    """What went wrong with a partition, or with the fit, in a sentence."""
    if isinstance(error, distributed.KilledWorker):
        return ChildProcessError(
            f"{what} was given up after {error.allowed_failures + 1} workers died of it, most likely for lack of "
            "memory; use smaller partitions, or workers with more memory."
        )
    if isinstance(error, MemoryError):
        return MemoryError(f"{what} stopped for lack of memory: {error}")
    if isinstance(error, distributed.CancelledError):
        return ChildProcessError(
            f"{what} depends on data that a lost worker held and that can't be computed again ({error}); give data "
            "that Dask reads or computes, not data that were scattered."
        )
    if isinstance(error, ValueError):
        return ValueError(f"{what}: {error}")
    return ValueError(f"{what} can't be read: {type(error).__name__}: {error}")


def _tasks(partitions, n_threads):
    """The partitions of a worker in lists for its threads, as many for each; FAN_IN partitions at most in a list.

    A task costs the scheduler milliseconds, whatever it does. A lost worker's task needs all its partitions in one
    place again, so that it should not have all of them.
    """
    n_tasks = min(len(partitions), n_threads * ceil(len(partitions) / (n_threads * FAN_IN)))
    cuts = [len(partitions) * i // n_tasks for i in range(n_tasks + 1)]
    return [partitions[first:last] for first, last in pairwise(cuts)]


def _tree(join, answers, most=1):
    """Delayed answers joined, FAN_IN at a time, until there are at most so many."""
    while len(answers) > most:
        answers = [delayed(join)(answers[i : i + FAN_IN]) for i in range(0, len(answers), FAN_IN)]
    return answers


def _in_graph(question, n_tasks):
    """The question as an argument of so many tasks of each worker: a copy in each, or a task of its own.

    Copies spare the workers to wait for a task. Where a worker would get several, or all take much room, a task of its
    own is better: it is sent to one worker, and handed on to each of the others once.
    """
    n_bytes = sum(getattr(own, "nbytes", 0) for own in question.arguments)
    is_copied = max(n_tasks) == 1 and n_bytes * len(n_tasks) <= COPIED_BYTES
    return question if is_copied else _literal(question)


class _RowsOnWorkers(SummedRows):
    """Rows in partitions on workers: `add_up` is one graph.

    The space, which may be large, is sent once; then only its biases.
    """

    def __init__(self, held, whole, space, *, fit_intercept, with_gram, n_jobs):
        self._held, self._whole = held, whole
        self._options = {"fit_intercept": fit_intercept, "n_jobs": n_jobs}
        self._common: Any = (None, None)  # a space, and the future of what all questions in it have in common
        super().__init__(whole, space, fit_intercept=fit_intercept, with_gram=with_gram)

    def add_up(self, question, space, *arguments):
        if self._common[0] is not self._space:  # at first, and in a copy by for_space
            common = (self._whole, self._space.with_jobs(self._options["n_jobs"]), self._options)
            self._common = (self._space, self._held.sent(common))
        return tuple(self._held.ask(self._common[1], _Question(question, space.bias, arguments)))
