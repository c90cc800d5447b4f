"""Sums of a cardinality space in plain tensor operations, for programs that torch exports.

What is computed elsewhere by operators of our own, or in an order that depends on the numbers, is here a fixed sequence
of operations that every exporter knows. Its length grows with the number of labels. The sums are in logarithms and of
labels that are tilted: with a threshold x between the scores that the most probable set has and the others, labels with
scores s - x are independent, log p and log q of this set are near 0, and sets of j labels more weigh exp(x j) more.
"""

import torch

from mlrh.torch._eager import ranking

# Stands for log 0: sums of a few stay finite, where -inf - -inf would be NaN. Constants of ONNX come in float32, which
# ends at 3.4e38.
NEVER = -1e30


class Sums:
    """Log-sums over sets of scores (n_rows, n_labels), with log-weights (max_labels + 1,) of the sizes.

    order : labels of each row by falling score, which is the order of all that follows
    """

    def __init__(self, scores, log_weights):
        scores = scores.to(torch.float64)
        self.n_labels, self.most = scores.shape[1], log_weights.shape[0] - 1
        self.order = ranking.by_score(scores)
        descending = scores.gather(1, self.order)
        mode = ranking.mode_sizes(descending[:, : self.most], log_weights)[:, None]
        bias = log_weights.to(torch.float64).clamp(min=NEVER)
        threshold = _threshold(descending, bias, mode)
        moved = descending - threshold
        self.log_p, self.log_q = (_log_sigmoid(value).unsqueeze(2).unbind(1) for value in (moved, -moved))
        steps = torch.arange(self.most + 1, device=scores.device) - mode
        self.size_weights = threshold * steps + (bias - bias[mode])
        self.never = torch.full_like(threshold, NEVER)
        self.start = torch.cat((torch.zeros_like(threshold), self.never.expand(-1, self.most)), 1)
        self.before = [self.start]  # sums over the labels before each one, and at last over all of them
        for log_p, log_q in zip(self.log_p, self.log_q, strict=True):
            self.before.append(self._with_label(self.before[-1], log_p, log_q))
        self.log_partition = (self.before[-1] + self.size_weights).logsumexp(1, keepdim=True)

    def marginals(self):
        """P(y_k = 1), (n_rows, n_labels)."""
        after, found = self.size_weights, []
        for label in range(self.n_labels - 1, -1, -1):
            taken = torch.cat((after[:, 1:], self.never), 1) + self.log_p[label]
            found.append((self.before[label] + taken).logsumexp(1, keepdim=True) - self.log_partition)
            after = _log_add(after + self.log_q[label], taken)
        by_score = torch.cat(found[::-1], 1).exp()
        return torch.zeros_like(by_score).scatter(1, self.order, by_score)

    def expected_of_tops(self, table):
        """Expected metric (n_labels + 1, n_rows) of the answers made of the first m labels, m = 0, ..., n_labels.

        table[m, t, r] is the metric where t of these are right and r others are missed.
        """
        n = self.most + 1
        sizes = torch.arange(n, device=table.device)
        total = (sizes[:, None] + sizes).clamp(max=n)
        weights = torch.cat((self.size_weights, self.never), 1)[:, total] - self.log_partition[:, :, None]
        after, values = self.start, []
        for m in range(self.n_labels, -1, -1):
            shares = (self.before[m][:, :, None] + after[:, None] + weights).exp()
            values.append((shares * table[m]).sum((1, 2)))
            if m > 0:
                after = self._with_label(after, self.log_p[m - 1], self.log_q[m - 1])
        return torch.stack(values[::-1])

    def _with_label(self, sums, log_p, log_q):
        return _log_add(sums + log_q, torch.cat((self.never, sums[:, :-1]), 1) + log_p)


def _threshold(descending, bias, mode):
    """The threshold x (n_rows, 1), as near as can be to where neighbouring sizes weigh the same by their biases."""
    low = -(bias - torch.nn.functional.pad(bias, (1, 0), value=NEVER)[:-1])
    high = -(torch.nn.functional.pad(bias, (0, 1), value=NEVER)[1:] - bias)
    wanted = torch.maximum(low, high.clamp(max=0.0))[mode]
    padded = torch.nn.functional.pad(torch.nn.functional.pad(descending, (1, 0), value=-NEVER), (0, 1), value=NEVER)
    return wanted.minimum(padded.gather(1, mode)).maximum(padded.gather(1, mode + 1))


def _log_sigmoid(x):
    # Not by torch's own, which some exporters write as the logarithm of a sigmoid, which may be 0.
    return x.clamp(max=0.0) - (-x.abs()).exp().log1p()


def _log_add(first, second):
    return first.maximum(second) + (-(first - second).abs()).exp().log1p()
