"""What classifiers with scores share: validation of y, the label space, predictions; and solvers of convex fits.

`JointClassifier` is any classifier whose scores feed a label space. `MLRHBase` is one whose scores are linear in
coefficients: a subclass defines how X becomes features of a design, how coefficients are stored and give scores.
"""

import sys
from abc import abstractmethod
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from mlrh import _sklearn, decisions, spaces
from mlrh._indicators import any_known, has_unknown
from mlrh._parallel import telling_of_compilation
from mlrh._sklearn import Interval, StrOptions
from mlrh._warnings import warn
from mlrh.estimators import _device, _features, _targets, _whole_fit
from mlrh.fitting import solvers
from mlrh.fitting.objective import Objective
from mlrh.spaces.independent import IndependentLabels

NOTED_OF_X = ("n_features_in_", "feature_names_in_", "_categories")
OF_PARTS = ("_kept", "n_samples_seen_", "n_samples_kept_")
ONE_CLASS = {False: (1, 1), True: (0, 1)}  # sizes for one class per row; True where two classes share one label
# Smallest and largest weight of a row, by the type of X: sums of weights times features, in float64 also their squares,
# stay in the range of that type.
WEIGHTS = {np.dtype(np.float64): (1e-100, 1e100), np.dtype(np.float32): (1e-15, 1e15)}
MAX_SHARE = 8.0  # largest factor of an earlier fit in an extrapolated start; for evenly spaced log C it is 3
TOL_OF_STARTS = 1e-5  # of the fit that gives the start where labels are unknown: the main fit moves on from there
MAX_ITER_OF_STARTS = 200  # for the same reason it need not converge

# What `verbose` says before the first kernel is compiled.
COMPILING = "compiling for this processor takes a few seconds, once: the result is kept on disk where that is possible"

MAX_TUNING_ROWS = 5000  # that `_tuned` looks at: bounds the cost of the choice on large data; not tuned
# Three folds chose no better strengths on six public sets, nor did 30 iterations on five, at C of 0.01, 1 and 30.
N_TUNING_FOLDS = 2
ITERATIONS_OF_TUNING = 6  # of fits whose scores only serve a choice and a start: they need not converge


@dataclass(frozen=True)
class _Problem:
    """What of a fit does not depend on C and the solver: rows of positive weight, form of y, label space."""

    X: Any
    Y: np.ndarray
    weights: np.ndarray
    support: np.ndarray
    form: Any
    space: Any
    noted: dict[str, Any]
    fitted_as: tuple

    @property
    def is_complete(self):
        """Whether every label of every row is known; the objective is convex only then."""
        return not has_unknown(self.Y)


class JointClassifier(_targets.SetClassifier):
    """A classifier whose scores feed a label space; a subclass defines `fit`, how X is checked, and scores of rows."""

    label_space_: Any

    _parameter_constraints: dict = {
        "label_space": [StrOptions(set(spaces.NAMES)), spaces.LabelSpace],
        "min_labels": [StrOptions({"auto"}), Interval(Integral, 0, None, closed="left")],
        "max_labels": [StrOptions({"auto"}), Interval(Integral, 0, None, closed="left")],
        "size_bias": ["boolean"],
        "set_bias_strength": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "decision": [StrOptions(set(decisions.BY_NAME)), tuple, callable],
        "answer_sizes": [None, tuple, list],
        "n_jobs": [Integral, None],
        "verbose": ["verbose"],
    }

    def _pose(self, X, y, sample_weight, form=None):
        """The _Problem of the training rows, all checked."""
        noting = copy(self)  # gets n_features_in_ and names: if this fit fails, self keeps those of the last one
        X = noting._validate_X(X, reset=True)
        y, sample_weight = _device.to_numpy(y), _device.to_numpy(sample_weight)
        if form is None:
            form, Y = _targets.encode(y, partly_known=True)
        else:
            Y = form.indicator(y, partly_known=True)
        _targets.check_same_length(X, Y)
        weights = _sklearn.check_sample_weight(sample_weight, Y, dtype=np.float64, ensure_non_negative=True)
        self._check_weights(X, weights)
        support = np.flatnonzero((weights > 0) & any_known(Y))
        if len(support) < len(weights):
            _targets.check_any(support)
            X, Y, weights = self._rows(X, support), Y[support], weights[support]
        if isinstance(self.label_space, str):  # an instance says how many labels there are, seen in these rows or not
            form, Y = form.seen_in(Y)
        _targets.check_every_label_known(form.classes, Y)
        problem = self._problem(X, Y, weights, support, form, noting)
        if not form.is_one_class_per_row:
            warn_where_undetermined(problem)
        return problem

    def _problem(self, X, Y, weights, support, form, noting, *, counts=None):
        """The _Problem of checked rows; noting is a copy of this estimator that has validated their X.

        counts says for how many rows each row of Y stands, None for itself.
        """
        try:
            space = self._space_of(Y, form, counts).for_targets(Y, classes=form.classes, rows=support)
        except ValueError as error:
            raise error if counts is None else ValueError(f"{error} (Rows that are alike count once here.)") from None
        _check_space(space, form, Y)
        Y = space.completed(Y)
        space = space.with_jobs(self.n_jobs)
        if not form.is_one_class_per_row:
            decisions.check(self.decision, self.answer_sizes, space)
        noted = {name: vars(noting)[name] for name in NOTED_OF_X if name in vars(noting)}
        fitted_as = (noting.n_features_in_, form.classes.tolist(), *self._form_of_scores(support))
        return _Problem(X, Y, weights, support, form, space, noted, fitted_as)

    def _space_of(self, Y, form, counts=None):
        """An object whose `for_targets` gives the label space of training rows Y, by the parameters of this estimator.

        counts are as for `_problem`.
        """
        return spaces.resolve(
            self.label_space,
            min_labels=self.min_labels,
            max_labels=self.max_labels,
            size_bias=self.size_bias,
            set_bias_strength=self.set_bias_strength,
            n_jobs=self.n_jobs,
            sizes_of_y=ONE_CLASS[Y.shape[1] == 1] if form.is_one_class_per_row else None,
            counts=counts,
        )

    def predict_proba(self, X) -> np.ndarray:
        """Marginals P(y_k = 1 | x) (n_samples, n_labels); for classes as y, P(class | x) (n_samples, n_classes)."""
        return _device.like(self._probabilities(X), X)

    def predict_log_proba(self, X) -> np.ndarray:
        """Logarithms of predict_proba."""
        probabilities = self._probabilities(X)
        if _device.stays(X):
            return _device.like(probabilities.log(), X)
        with np.errstate(divide="ignore"):
            return np.log(probabilities)

    def decision_function(self, X) -> np.ndarray:
        """Scores (n_samples, n_labels); for two classes as y, (n_samples,), positive for the second class."""
        scores = self._scores(X)
        is_single = self._targets.is_one_class_per_row and len(self.classes_) == 2
        return _device.like(scores[:, 0] if is_single else scores, X)

    def distribution(self, X) -> spaces.LabelSetDistribution:
        """The distribution of the label set of each row of X, a LabelSetDistribution; of mlrh.torch for X on a GPU."""
        return self._distribution_of(self._scores(X))

    def __sklearn_is_fitted__(self):
        """Whether a fit has ended; one that failed after validating X has not."""
        return hasattr(self, "_targets")

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.target_tags.multi_output = False
        tags.input_tags.sparse = True
        return tags

    def _scores(self, X):
        check_is_fitted(self)
        return self._scores_of(self._compared(X))

    def predict(self, X):
        """Label sets for the rows of X, in the form of the y of training."""
        sets = self._predict_sets(X)
        return _device.decoded(self._targets, sets, X) if _device.stays(X) else self._targets.decode(sets, X)

    def score(self, X, y, sample_weight=None) -> float:
        """Share of rows whose predicted set is exactly right, whatever predictions are to maximise."""
        predicted = _device.to_numpy(self._predict_sets(X))  # before y is looked at: raises NotFittedError first
        return self._targets.share_right(predicted, _device.to_numpy(y), _device.to_numpy(sample_weight))

    def _probabilities(self, X):
        distribution = self.distribution(X)
        if self._targets.is_one_class_per_row and len(self.classes_) == 2:
            return distribution.cardinality_pmf()
        return distribution.marginals()

    def _predict_sets(self, X):
        return self._decide(self.distribution(X))

    def _distribution_of(self, scores):
        if _device.is_tensor(scores):
            return _device.distribution(self.label_space_, scores)
        return self.label_space_.with_jobs(self.n_jobs).distribution(scores)

    def _decide(self, distribution):
        """Predicted sets as an indicator matrix; one class per row is always the most probable one."""
        decision = "exact_match" if self._targets.is_one_class_per_row else self.decision
        if _device.is_tensor(distribution.scores):
            if not self._targets.is_one_class_per_row:
                _device.check_decision(self)
            return _device.decide(distribution, decision)
        if self._targets.is_one_class_per_row:
            return decisions.exact_match(distribution)
        return decisions.resolve(self.decision, self.answer_sizes)(distribution)

    @abstractmethod
    def _validate_X(self, X, *, reset): ...

    @abstractmethod
    def _rows(self, X, support): ...

    def _check_weights(self, X, weights):
        """Raise a ValueError where these weights of rows can't be fitted to; by default all can."""

    def _form_of_scores(self, support):
        """A tuple that must be equal for a warm start, besides features and labels."""
        return ()

    @abstractmethod
    def _compared(self, X):
        """What `_scores_of` needs of X, the same along a path of fits: checked rows, or kernel values."""

    @abstractmethod
    def _scores_of(self, compared):
        """Scores (n_samples, n_labels) of what `_compared` returned."""


class MLRHBase(_sklearn.CallbackSupportMixin, JointClassifier):
    """The linear and the kernel classifier without the part that turns X into scores."""

    intercept_: np.ndarray

    _parameter_constraints: dict = {
        **JointClassifier._parameter_constraints,
        "C": [Interval(Real, 0, None, closed="right")],
        "l1_ratio": [Interval(Real, 0, 1, closed="both")],
        "fit_intercept": ["boolean"],
        "solver": [StrOptions({"auto", *solvers.BY_NAME}), callable],
        "mm_step": [StrOptions({"safe", "paper"})],
        "tol": [Interval(Real, 0, None, closed="left")],
        "max_iter": [Interval(Integral, 0, None, closed="left")],
        "warm_start": ["boolean"],
    }

    @_sklearn.fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, sample_weight=None) -> Self:
        """Fit to X (n_samples, n_features) and y in any of the forms the class documents.

        Parameters
        ----------
        X : array-like, DataFrame or sparse matrix of shape (n_samples, n_features)
        y : indicator matrix, list of label sets, or classes of shape (n_samples,)
            An indicator matrix may hold NaN (or be masked) where a label is unknown; see the class.
        sample_weight : array of shape (n_samples,), optional
            A row of weight 2 counts as the row twice, one of weight 0 as absent. Positive weights lie from 1e-100 to
            1e100, with X in float32 from 1e-15 to 1e15.

        Returns
        -------
        self
        """
        problem = self._pose(X, y, sample_weight)
        metadata = None if sample_weight is None else {"sample_weight": sample_weight}
        with _sklearn.telling_of_fit(self, max_iter=self.max_iter, X=X, y=y, metadata=metadata) as iterations:
            self._solve(problem, warm=self.warm_start, iterations=iterations)
        return self

    def _solve(self, problem, *, warm, iterations=None, rows=None):
        """Fit to a problem and keep the result; warm starts from the last fit if features and labels are the same.

        rows are attributes that partial_fit keeps with the result.
        """
        is_warm = warm and getattr(self, "_fitted_as", None) == problem.fitted_as
        earlier = self._earlier_scores(problem.X) if is_warm else None
        prepared = self._prepare(problem.X, problem.weights, self.C)
        starts = () if earlier is None else ((*self._project(prepared, earlier), self.label_space_),)
        self._settle(problem, prepared, starts, iterations=iterations, rows=rows)

    def _fit_path(self, X, y, Cs, sample_weight=None, form=None):
        """Yields a fitted copy of this estimator for each C in turn; what doesn't depend on C is done once.

        Each fit starts from the last two or three, extrapolated along log C, whichever start is better. The form is
        that of all rows, of which y may be a part.
        """
        problem = self._pose(X, y, sample_weight, form)
        prepared = self._prepare(problem.X, problem.weights, max(Cs), keep_gram=True)
        reached: list[tuple] = []
        metric = solvers.MetricOfPath()
        for i, C in enumerate(Cs):
            fitted = clone(self).set_params(C=C)
            # With unknown labels there may be several optima, so every fit starts as it would on its own.
            starts = _extrapolated(reached, Cs[: i + 1]) if problem.is_complete else ()
            metric_at = metric if len(starts) > 0 and Cs[i - 1] <= C else None
            reached = [*reached[-2:], fitted._settle(problem, prepared, starts, metric_at=metric_at)]
            yield fitted

    def _pose(self, X, y, sample_weight, form=None):
        self._check_penalty()
        if _device.stays(X):
            _device.check_fit(self)
            _device.check_decision(self)
        return super()._pose(X, y, sample_weight, form)

    def _check_weights(self, X, weights):
        check_strength(self.C, weights, _features.dtype_of(X))
        _features.check_float32_sums(X, weights)

    def _settle(self, problem, prepared, starts, *, metric_at=None, iterations=None, rows=None):
        """Solve and keep the result; returns a start for a fit with another C.

        Starts are as for `_start`, metric_at as for `lbfgs`. `iterations` reports every iteration to the callbacks.
        """
        self._warn_of_rounding(prepared)
        with telling_of_kernels(self):
            problem, from_folds = self._tuned(problem, prepared.design)
            if len(starts) == 0 and problem.is_complete and from_folds:
                starts, metric_at = from_folds, Objective.metric_near
            objective = self._objective(prepared.design, problem.space, problem.Y)
            return self._conclude(
                problem, prepared, objective, starts, metric_at=metric_at, iterations=iterations, more=rows
            )

    def _objective(self, design, space, Y):
        """The objective of a fit to rows with label sets Y, which lie in memory or on a device."""
        if not design.is_on_device:
            return Objective(design, space, Y, **self._strengths)
        from mlrh.fitting.device import DeviceObjective  # loads torch

        return DeviceObjective(design, space, Y, **self._strengths)

    def _conclude(self, problem, prepared, objective, starts, *, metric_at=None, iterations=None, more=None, tell=None):
        """`_settle`, from the objective on; more are attributes to keep with the result, where it has no support_.

        tell(iteration, value, share left) is called after every iteration, in place of what `verbose` prints.
        A fit that fails leaves the last one as it was. With warm_start, an interrupted fit is kept; the
        KeyboardInterrupt is raised either way.
        """
        begin, is_interrupted = self._start(objective, problem, starts)
        if iterations is not None:
            iterations = iterations.showing(partial(self._attributes_at, problem, prepared, objective))
        solver = self._default_solver if self.solver == "auto" else self.solver
        limits = {"tol": self.tol, "max_iter": 0 if is_interrupted else self.max_iter}
        told = {"iterations": iterations, "tell": tell}
        solution = self._minimise(solver, objective, begin, **limits, **told, metric_at=metric_at)
        if not is_interrupted:
            self._warn_unless_converged(solver, solution)
        coef, mean_score, bias = objective.split(objective.canonical(solution.parameters))
        attributes = self._attributes(problem, prepared, (coef, mean_score, bias))
        of_solution = {"n_iter_": solution.n_iter, "objective_": solution.value, "history_": np.array(solution.history)}
        # Attributes that this fit may not have (as of another label space) must not be left over from the last one.
        of_space = self.label_space_.fitted_attributes() if hasattr(self, "label_space_") else {}
        without = {*NOTED_OF_X, *OF_PARTS, *of_space}
        if more is not None:
            attributes.pop("support_")  # would number rows that no call was given as such
            without.add("support_")
        _whole_fit.keep(self, {**attributes, **of_solution, **(more or {})}, without=without)
        if is_interrupted or solution.interrupted:
            raise KeyboardInterrupt
        return coef, mean_score, self.label_space_

    def _tuned(self, problem, design):
        """The problem with a label space that has chosen, on held-out rows, what a fit can't learn; and starts.

        A sample of the rows is divided into folds. A simpler space is fitted to the rows outside each fold, with the
        same penalty per row. The mean of these fits is a start for the fit to all rows, as `_start` takes it.
        """
        simpler, n_rows = problem.space.simpler(), len(problem.Y)
        if simpler is None or n_rows < N_TUNING_FOLDS:
            return problem, ()
        sample = tuning_sample(n_rows)
        space, start = self._tuned_space(problem.space, design, sample, problem.Y[sample], n_rows)
        return replace(problem, space=space), (start,)

    def _tuned_space(self, space, design, sample, Y, n_rows):
        """The space tuned on a sample of n_rows rows, and a start: mean coefficients of the folds, mean scores, space.

        The sample is numbers of rows of the design; Y are their label sets.
        """
        strengths = {name: value * len(sample) / n_rows for name, value in self._strengths.items()}
        simpler, every = space.simpler(), design.of_rows(sample)
        folds, fits = [], []
        for number in range(N_TUNING_FOLDS):
            held_out = np.arange(len(sample)) % N_TUNING_FOLDS == number
            part = design.of_rows(sample[~held_out])
            objective = Objective(part, simpler, Y[~held_out], **strengths)
            # tol=0: that it has not converged need not be checked.
            limits = {"tol": 0.0, "max_iter": ITERATIONS_OF_TUNING}
            solution = self._minimise(self._default_solver, objective, objective.start(), **limits)
            if solution.interrupted:  # nothing of the fit itself could be kept
                raise KeyboardInterrupt
            coef, mean_score, _ = objective.split(solution.parameters)
            # The intercept is the score at the mean of the rows of a design, so it moves with that mean.
            scores = every.scores(coef, mean_score + (every.mean - part.mean) @ coef)
            folds.append((held_out, scores, objective.space_at(solution.parameters)))
            fits.append((coef, mean_score + (design.shift - part.mean) @ coef))
        space = space.tuned(Y, every.weights, folds)
        return space, (*(np.mean(values, axis=0) for values in zip(*fits, strict=True)), space)

    def _attributes_at(self, problem, prepared, objective, parameters):
        """The fitted attributes if the fit ended at these parameters, by name."""
        return self._attributes(problem, prepared, objective.split(objective.canonical(parameters)))

    def _attributes(self, problem, prepared, found):
        """The fitted attributes for coefficients of the design's features, mean scores and biases, by name."""
        coef, mean_score, bias = found
        space = problem.space.with_bias(bias) if len(bias) else problem.space
        of_space = space.fitted_attributes()
        for name, value in of_space.items():
            if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                of_space[name] = value.astype(prepared.design.dtype)
        of_targets = {"_targets": problem.form, "classes_": problem.form.classes, "_fitted_as": problem.fitted_as}
        of_scores = self._attributes_of(prepared, coef, mean_score)
        return {
            **problem.noted,
            **of_space,
            **of_scores,
            **of_targets,
            "label_space_": space,
            "support_": problem.support,
        }

    @abstractmethod
    def _prepare(self, X, weights, C, *, keep_gram=False):
        """What fits at any C up to this one have in common: an object whose `design` the solver works on."""

    def _warn_of_rounding(self, prepared):
        """Warn where rounding hides features that matter at this C; nothing by default."""

    @abstractmethod
    def _earlier_scores(self, X):
        """What `_project` needs to know of the earlier fit."""

    @abstractmethod
    def _project(self, prepared, earlier):
        """Coefficients of the design's features, and mean scores, that come nearest to the earlier fit."""

    @abstractmethod
    def _attributes_of(self, prepared, coef, mean_score):
        """The fitted attributes that give scores, by name, from coefficients of the design's features."""

    def _start(self, objective, problem, starts):
        """Parameters to start from, one or several (n_starts, n_parameters), and whether finding them was interrupted.

        Each of `starts` is (coefficients, mean scores, label space) of an earlier fit.
        """
        if len(starts):
            return np.array([_joined(objective, *start) for start in starts]), False
        if problem.is_complete:
            return objective.start(), False
        coef, mean_score, is_interrupted = self._separate_fits(objective)
        return objective.start_from(coef, mean_score, np.zeros(objective.n_biases)), is_interrupted

    def _separate_fits(self, objective):
        """Coefficients and mean scores of one logistic regression per label, fitted to its known entries."""
        objective = objective.in_space(IndependentLabels(objective.n_labels))
        limits = {"tol": max(self.tol, TOL_OF_STARTS), "max_iter": MAX_ITER_OF_STARTS}
        solution = self._minimise(self._default_solver, objective, objective.start(), **limits)
        coef, mean_score, _ = objective.split(solution.parameters)
        return coef, mean_score, solution.interrupted

    def _minimise(self, solver, objective, start, *, tol, max_iter, iterations=None, metric_at=None, tell=None):
        """The Solution; an interrupt is raised at once unless warm_start asks to keep what was reached."""
        function = objective.solver_named(solver) or _function(solver)
        offered = dict(zip(solvers.OPTIONS, (self.mm_step, self.n_jobs, metric_at), strict=True))
        options = {option: offered[option] for option in getattr(function, "options", ())}
        if iterations is not None:
            iterations.begin(np.atleast_2d(start)[0])
        report = self._report(_name(solver), iterations, tell)
        solution = function(objective, start, tol=tol, max_iter=max_iter, report=report, **options)
        if not isinstance(solution, solvers.Solution):
            raise TypeError(f"A solver must return a Solution; {_name(solver)} returned a {type(solution).__name__}.")
        if iterations is not None:
            iterations.close()
        if solution.interrupted and not self.warm_start:
            raise KeyboardInterrupt
        return solution

    def _warn_unless_converged(self, solver, solution):
        if solution.converged or solution.interrupted or solution.stopped:
            return
        remedy = "Increase max_iter, scale the features (for example with StandardScaler), or lower C."
        if solution.n_iter < self.max_iter:
            remedy = "No further step decreases the objective; scale the features, lower C, or increase tol."
        stop = f"solver {_name(solver)!r} stopped after {solution.n_iter} iterations before reaching tol={self.tol:g}."
        warn(f"{stop} {remedy}", ConvergenceWarning)

    def _report(self, name, iterations=None, tell=None):
        """The function that a solver calls after each iteration: prints, tells callbacks, returns whether to stop."""
        if not self.verbose and iterations is None:
            return None

        def report(iteration, value, left, parameters):
            if tell is not None:
                tell(iteration, value, left)
            elif self.verbose:
                print(f"[{type(self).__name__}] {name} iteration {iteration}: objective {value:.8g}, left {left:.2g}")
            if iterations is None:
                return False
            stop = iterations.end(parameters)
            iterations.begin(parameters)
            return stop

        return report

    @property
    def _strengths(self):
        """Strengths of the L2 and the L1 penalty on coefficients, in units of the loss."""
        return {"alpha": (1.0 - self.l1_ratio) / self.C, "l1": self.l1_ratio / self.C}

    @property
    def _default_solver(self):
        return "prox-newton" if self._strengths["l1"] > 0 else "lbfgs"

    def _check_penalty(self):
        """Raise a ValueError where the solver can't minimise the objective with these penalties."""
        solver = self._default_solver if self.solver == "auto" else self.solver
        l1_ratio = self.l1_ratio if self._strengths["l1"] > 0 else 0.0
        solvers.check_pairing(_name(solver), _function(solver), offers=Objective.offers, l1_ratio=l1_ratio)


def _function(solver):
    return solver if callable(solver) else solvers.BY_NAME[solver]


def _name(solver):
    return getattr(solver, "__name__", repr(solver)) if callable(solver) else solver


def tuning_sample(n_rows):
    """Numbers of the rows on which a label space is tuned, in random order."""
    return np.random.RandomState(0).permutation(n_rows)[:MAX_TUNING_ROWS]


def _joined(objective, coef, mean_score, earlier_space):
    """Parameters from those of an earlier fit; its biases only if they belong to the same sets."""
    space = objective.space
    bias = earlier_space.bias if space.has_sets_of(earlier_space) else np.zeros(space.n_biases)
    return objective.start_from(coef, mean_score, bias)


def warn_where_undetermined(problem):
    """Warn once of all that has no finite optimum for these rows; light ridges in the objective keep it finite."""
    problems = [*_targets.constant_labels(problem.form.classes, problem.Y), *problem.space.undetermined(problem.Y)]
    if problems:
        warn(
            f"The training rows don't determine the model in full ({'; '.join(problems)}); a tiny penalty keeps it "
            "finite, and what they don't show is hardly ever predicted. Add rows that show it, or leave it out."
        )


def _check_space(space, form, Y):
    """Raise a ValueError where a label space that was given as an instance can't be that of y."""
    if space.n_labels != Y.shape[1]:
        raise ValueError(f"The label space has {space.n_labels} labels and y has {Y.shape[1]}; they must be as many.")
    needed = ONE_CLASS[Y.shape[1] == 1]
    if form.is_one_class_per_row and space.sizes() != needed:
        what = "the second of two classes is the only label, present or not" if needed == (0, 1) else "one label a row"
        raise ValueError(
            f"With one class per row ({what}) a label space must have sets of {needed[0]} to {needed[1]} labels; got "
            f"{space.sizes()[0]} to {space.sizes()[1]} in {space!r}. Use label_space='cardinality'."
        )


def telling_of_kernels(model):
    """A block, around the whole of a fit, in which `verbose` says once that kernels are compiled."""
    words = f"[{type(model).__name__}] {COMPILING}"
    tell = partial(print, words, file=sys.stderr, flush=True)
    return telling_of_compilation(tell) if model.verbose else nullcontext()


def check_strength(C, weights, dtype):
    """Raise a ValueError unless 1 / C is finite and the positive weights are neither tiny nor huge."""
    with np.errstate(over="ignore", divide="ignore"):
        inverse = np.divide(1.0, C)
    if not np.isfinite(inverse):
        raise ValueError(f"1 / C must be finite; got C={C}.")
    positive = weights[weights > 0]
    low, high = WEIGHTS[dtype]
    if len(positive) and not (positive.min() >= low and positive.max() <= high):
        raise ValueError(
            f"With X in {dtype}, a sample_weight must be 0 or lie from {low:g} to {high:g}; got positive weights from "
            f"{positive.min():g} to {positive.max():g}. Scale them."
        )


def _extrapolated(reached, Cs):
    """Starts for Cs[-1]: the last two and the last three fits, reached at Cs[:-1], extrapolated; or else the last one.

    By Lagrange polynomials in log C, unless that reaches too far. Coefficients and mean scores are extrapolated, biases
    are those of the last fit.
    """
    starts, places = [], np.log(Cs[-len(reached) - 1 :]) if reached else np.zeros(1)
    for n_points in range(2, len(reached) + 1):
        known, place = places[-n_points - 1 : -1], places[-1]
        if not np.isfinite(place) or (np.diff(known) <= 0).any():
            break
        others = [np.delete(known, j) for j in range(n_points)]
        shares = [np.prod((place - other) / (own - other)) for own, other in zip(known, others, strict=True)]
        if max(np.abs(shares)) > MAX_SHARE:
            break
        pairs = zip(*(start[:2] for start in reached[-n_points:]), strict=True)
        coef, mean_score = (sum(share * value for share, value in zip(shares, values, strict=True)) for values in pairs)
        starts.append((coef, mean_score, reached[-1][2]))
    return starts or reached[-1:]
