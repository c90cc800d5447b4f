"""From a distribution to label sets: the best prediction for a metric, batched over rows.

The names are those of `mlrh.decisions`. Of equally good answers the smaller set and the lower label win, values that
differ by 1e-13 of their magnitude being equal.
"""

from numbers import Integral

import torch

from mlrh.torch._eager import ranking, traced, tree
from mlrh.torch._eager.dispatch import blocks, parts
from mlrh.torch._eager.numbers import joined, total, with_constant
from mlrh.torch.distribution import TIE


def decide(distribution, decision="exact_match"):
    """The best sets for a metric, (n_rows, n_labels), int8.

    Parameters
    ----------
    distribution : LabelSetDistribution
    decision : str, tuple or function
        "exact_match": the most probable set, always a set of the label space. "hamming": every label with a marginal
        above 1/2. "f1": the set with the highest expected F1 of the row. ("top", k): the k likeliest labels. These are
        exact in every label space. In a cardinality space only: "jaccard", the set with the highest expected Jaccard
        index, or a function f(tp, fp, fn) of integer tensors of one shape, the numbers of labels rightly in the answer,
        wrongly in it and wrongly left out, which returns more for better: the set with the highest expectation. It must
        never fall when a wrong label of the answer is swapped for a right one, f(tp + 1, fp, fn) >=
        f(tp, fp + 1, fn + 1), which is checked. Answers for a metric are exact there, in O(n_labels max_labels^2) per
        row but for a logarithm.

    Examples
    --------
    >>> import torch
    >>> from mlrh.torch import CardinalitySpace, decide
    >>> d = CardinalitySpace(n_labels=3, min_labels=0, max_labels=2).distribution(torch.tensor([[0.2, -0.3, -4.0]]))
    >>> decide(d, lambda tp, fp, fn: -(fp + 5 * fn)).tolist()  # to miss a label costs as much as five too many
    [[1, 1, 0]]
    """
    if isinstance(distribution, torch.Tensor):
        raise ValueError("decide takes a distribution, not logits; make one with MLRHLoss.distribution(logits).")
    if isinstance(decision, str) and decision in BY_NAME:
        return BY_NAME[decision](distribution)
    if isinstance(decision, tuple) and len(decision) == 2 and decision[0] == "top":
        return _top(distribution, decision[1])
    if callable(decision):
        return _best(distribution, decision)
    names = ", ".join(map(repr, sorted(BY_NAME)))
    raise ValueError(f"decision must be one of {names}, ('top', k) or a function f(tp, fp, fn); got {decision!r}.")


def _hamming(distribution):
    scores = distribution.scores.detach().to(torch.float64)  # in a narrow type 1/2 can't be told from its neighbours
    space = distribution.space
    _check_export("hamming", space)
    if torch.compiler.is_exporting():
        marginals = traced.Sums(scores, space.log_weights(scores).detach()).marginals()
    else:
        marginals = space.distribution(scores).marginals().detach()
    return (marginals > 0.5 * (1 + TIE)).to(torch.int8)


BY_NAME = {
    "exact_match": lambda distribution: distribution.mode(),
    "hamming": _hamming,
    "f1": lambda distribution: _f1(distribution),
    "jaccard": lambda distribution: _best(distribution, _jaccard_of_counts),
}


def _f1_of_counts(tp, fp, fn):
    """2 tp / (2 tp + fp + fn), 1 for an empty answer to an empty truth."""
    wrong = fp + fn
    return torch.where(tp + wrong == 0, 1.0, 2.0 * tp / (2 * tp + wrong).clamp(min=1))


def _jaccard_of_counts(tp, fp, fn):
    """tp / (tp + fp + fn), 1 for an empty answer to an empty truth."""
    total = tp + fp + fn
    return torch.where(total == 0, 1.0, tp / total.clamp(min=1))


def _top(distribution, k):
    n_labels = distribution.space.n_labels
    if not isinstance(k, Integral) or isinstance(k, bool) or not 0 <= int(k) <= n_labels:
        raise ValueError(f"k must be an integer from 0 to the number of labels, {n_labels}; got {k!r}.")
    _check_export(("top", k), distribution.space)
    values = distribution.scores if distribution.space.nested_answers else distribution.marginals()
    order = ranking.by_score(values.detach())
    return ranking.first_of(order, torch.full_like(order[:, 0], int(k)))


def _f1(distribution):
    space = distribution.space
    if space.nested_answers:
        return _best(distribution, _f1_of_counts)
    _check_export("f1", space)
    return space.best_f1(distribution.scores.detach().to(torch.float64))


def _check_export(decision, space):
    """Raise in an export unless the space is a cardinality space; the marginals of others can't be exported."""
    if torch.compiler.is_exporting() and not space.nested_answers:
        raise ValueError(
            f"decide for {decision!r} is exported for a cardinality space only; got {space!r}. Export the logits and "
            "decide after them."
        )


def _best(distribution, metric):
    """The m labels of highest score, for the m with the highest expected metric."""
    scores = distribution.scores.detach()
    space = distribution.space
    if not space.nested_answers:
        way = "Export the logits, and decide after them by" if torch.compiler.is_exporting() else "Use"
        raise ValueError(
            "decide has the Jaccard index and functions of your own for a cardinality space only; got "
            f"{space!r}. {way} 'f1', 'exact_match', 'hamming' or ('top', k), which are exact in every label space."
        )
    if torch.compiler.is_exporting():
        return _best_exported(scores, space, metric)
    table = _table(metric, space, scores.device)
    order = ranking.by_score(scores)
    descending = scores.gather(1, order).to(torch.float64)
    log_weights = space.log_weights(scores).detach().expand(len(scores), -1)
    counts = torch.empty(len(scores), dtype=torch.int64, device=scores.device)
    for rows in blocks(len(scores), space.n_labels * (space.max_labels + 1)):
        for some, weights, size_weights in parts(descending[rows], log_weights[rows]):
            values = _expected(weights, size_weights, table, space.n_labels)
            near = TIE * values.abs().amax(0)
            counts[rows][some] = (values >= values.amax(0) - near).to(torch.int8).argmax(0)
    return ranking.first_of(order, counts)


def _best_exported(scores, space, metric):
    """`_best` in operations that can be exported; the metric is not checked, as numbers can't be looked at."""
    n, most = space.n_labels, space.max_labels
    m, t, r = torch.meshgrid(*(torch.arange(k + 1, device=scores.device) for k in (n, most, most)), indexing="ij")
    possible = (t <= m) & (m + r <= n) & (t + r >= space.min_labels) & (t + r <= most)
    # Counts that can't occur are replaced by some that can, so that a metric need not bear them.
    found = metric(*(torch.where(possible, own, 0) for own in (t, m - t, r))).to(torch.float64)
    sums = traced.Sums(scores, space.log_weights(scores).detach())
    values = sums.expected_of_tops(torch.where(possible, found, 0.0))
    near = TIE * values.abs().amax(0)
    return ranking.first_of(sums.order, (values >= values.amax(0) - near).to(torch.int32).argmax(0))


def _expected(weights, size_weights, table, n_labels):
    """Expected metric (n_labels + 1, n_rows) of the answers made of the first m labels, m = 0, ..., n_labels.

    The truth has t labels among the first m and r among the others with a probability proportional to
    size_weights[t + r] e_t(first m) e_r(others), e the sums over sets.
    """
    degree = len(size_weights) - 1
    backwards = torch.arange(n_labels, -1, -1)
    prefix = _prefixes(weights[:n_labels], degree)
    suffix = _prefixes(weights[backwards[1:]], degree)[:, backwards]
    partition = total(tree.size_sums([prefix[1:, -1:]], size_weights))
    values = torch.zeros((), dtype=torch.float64)
    for (t, r), metric in table.items():
        share = size_weights[t + r][None] * prefix[t] * suffix[r]
        values = values + share / partition[None] * metric[:, None]
    return values


def _prefixes(weights, degree):
    """Coefficients (degree + 1, n_labels + 1, n_rows) of the products of the first m = 0, ..., n_labels polynomials.

    By doubling: after a step, product m is of the last `reach` polynomials up to m.
    """
    n_labels, n_rows = weights.shape
    products = joined(weights[None], weights.new_zeros((degree - 1, n_labels, n_rows)))
    reach = 1
    while reach < n_labels:
        longer = tree.product(products[:, :-reach], products[:, reach:], degree)
        products = joined(products[:, :reach], longer, 1)
        reach *= 2
    return with_constant(joined(products.new_zeros((degree, 1, n_rows)), products, 1))


def _table(metric, space, device):
    """The metric by (tp, fn) for answers of m = 0, ..., n_labels labels, 0 where these counts can't occur; checked."""
    sizes = torch.arange(space.n_labels + 1, device=device)
    table = {
        (t, j - t): _values(metric, t, j - t, sizes)
        for j in range(space.min_labels, space.max_labels + 1)
        for t in range(j + 1)
    }
    scale = max(float(values.abs().max()) for values in table.values())
    for (t, r), right in table.items():
        wrong = table.get((t - 1, r + 1))
        possible = (sizes >= t) & (sizes + r + 1 <= space.n_labels)
        if wrong is not None and (falls := possible & (right < wrong - 1e-12 * scale)).any():
            m = int(falls.to(torch.int8).argmax())
            raise ValueError(
                "A metric f(tp, fp, fn) must never fall when a wrong label is swapped for a right one; got "
                f"f{t, m - t, r} = {right[m]:g} below f{t - 1, m - t + 1, r + 1} = {wrong[m]:g}. If it is a loss, "
                "return its negative."
            )
    return table


def _values(metric, tp, fn, sizes):
    possible = (sizes >= tp) & (sizes + fn < len(sizes))
    m = sizes[possible]
    found = metric(torch.full_like(m, tp), m - tp, torch.full_like(m, fn))
    if not isinstance(found, torch.Tensor) or found.shape != m.shape:
        got = f"shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
        raise ValueError(
            f"A metric f(tp, fp, fn) must return a tensor of the shape of the counts, {tuple(m.shape)}; got {got}. "
            "Write it with torch functions."
        )
    if not found.isfinite().all():
        i = int(found.isfinite().to(torch.int8).argmin())
        counts = (tp, int(m[i]) - tp, fn)
        raise ValueError(
            f"A metric f(tp, fp, fn) must be finite at all counts that can occur; got f{counts} = {found[i]}."
        )
    return torch.zeros(len(sizes), dtype=torch.float64, device=sizes.device).masked_scatter(
        possible, found.to(torch.float64)
    )
