"""A graph of ONNX nodes, written like NumPy: `Graph` collects nodes and constants, `Value` is a name with operators.

Nothing is computed here. A node is added where a value is made, and names come from one counter, so that no two nodes
and no two values of a model, those within Scans included, have the same name.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

OPSET = 18  # from here on all reductions take their axes as an input, so that one way of writing serves for all
# Stands for log 0: sums of a few of them stay finite (float64 ends at 1.8e308), where -inf - -inf would be NaN. It is
# below every sum of scores, and exp of it is 0.
NEVER = -1e300
DOUBLE, INT64 = TensorProto.DOUBLE, TensorProto.INT64


class Graph:
    """Nodes of a graph, or of the body of a Scan.

    add_node(kind, inputs, outputs, name=, **attributes) and add_constant(tensor) put them where they belong. new_name
    (word) gives a name that nothing else in the model has.
    """

    def __init__(self, add_node: Callable, add_constant: Callable[[TensorProto], None], new_name: Callable[[str], str]):
        self._add_node, self._add_constant, self.new_name = add_node, add_constant, new_name
        self._constants: dict[tuple, Value] = {}

    def node(self, kind, *inputs, n_outputs=1, **attributes):
        """The value of a new node, or a tuple of n_outputs values; inputs are values, arrays or numbers."""
        names = [self.value(one).name for one in inputs]
        outputs = [self.new_name(kind) for _ in range(n_outputs)]
        self._add_node(kind, names, outputs, name=self.new_name(kind), **attributes)
        values = tuple(Value(self, name) for name in outputs)
        return values if n_outputs > 1 else values[0]

    def value(self, one):
        """A value as it is, an array or number as a constant: integers as int64, all others as float64."""
        if isinstance(one, Value):
            return one
        array = np.asarray(one)
        array = array.astype(np.int64 if array.dtype.kind in "iu" else np.float64)
        key = (array.dtype.char, array.shape, array.tobytes())
        if key not in self._constants:
            name = self.new_name("constant")
            self._add_constant(numpy_helper.from_array(array.copy(), name))  # a copy: contiguous, also of no dimension
            self._constants[key] = Value(self, name)
        return self._constants[key]

    def text(self, words):
        """A constant of strings."""
        name = self.new_name("constant")
        self._add_constant(numpy_helper.from_array(np.array([str(word) for word in words], object), name))
        return Value(self, name)

    def named(self, name):
        """The value of a name that another part of the model has made."""
        return Value(self, name)

    def concat(self, *values, axis):
        return self.node("Concat", *values, axis=axis)

    def where(self, condition, chosen, other):
        return self.node("Where", condition, chosen, other)

    def maximum(self, first, second):
        return self.node("Max", first, second)

    def minimum(self, first, second):
        return self.node("Min", first, second)

    def log_add(self, first, second):
        """log(exp(first) + exp(second)), without overflow."""
        return self.maximum(first, second) + (-(first - second).abs()).softplus()

    def scan(self, body, states, inputs, *, fixed=(), reverse=False):
        """Goes through the first axis of the inputs; returns the last states and the stacked outputs, two lists.

        body(graph, states, inputs, *fixed) returns the next states and the outputs of one step, as two lists. fixed are
        values that all steps need: a body must not use others from outside, since skl2onnx doesn't see that when it
        sorts nodes. With reverse, it goes from the last step to the first; outputs are stacked in the order of the
        inputs either way.
        """
        n_states, states = len(states), [*states, *fixed]
        nodes: list[NodeProto] = []
        constants: list[TensorProto] = []
        within = Graph(
            lambda *what, **more: nodes.append(helper.make_node(*what, **more)), constants.append, self.new_name
        )
        given = [within.named(within.new_name("given")) for _ in (*states, *inputs)]
        kept = given[n_states : len(states)]
        next_states, outputs = body(within, given[:n_states], given[len(states) :], *kept)
        # Identity: an output of a body must be a node's own, also where it is an input.
        found = [within.node("Identity", value) for value in (*next_states, *kept, *outputs)]
        graph = helper.make_graph(
            nodes,
            self.new_name("body"),
            [helper.make_empty_tensor_value_info(value.name) for value in given],
            [helper.make_tensor_value_info(value.name, DOUBLE, None) for value in found],
            constants,
        )
        directions = {"scan_input_directions": [1] * len(inputs), "scan_output_directions": [1] * len(outputs)}
        about = {"num_scan_inputs": len(inputs), **(directions if reverse else {})}
        results = self.node("Scan", *states, *inputs, n_outputs=len(found), body=graph, **about)
        results = results if isinstance(results, tuple) else (results,)
        return list(results[:n_states]), list(results[len(states) :])


@dataclass(frozen=True, eq=False)
class Value:
    """The result of a node, by its name."""

    graph: Graph
    name: str

    def __add__(self, other):
        return self.graph.node("Add", self, other)

    def __sub__(self, other):
        return self.graph.node("Sub", self, other)

    def __mul__(self, other):
        return self.graph.node("Mul", self, other)

    def __truediv__(self, other):
        return self.graph.node("Div", self, other)

    def __matmul__(self, other):
        return self.graph.node("MatMul", self, other)

    def __neg__(self):
        return self.graph.node("Neg", self)

    def __gt__(self, other):
        return self.graph.node("Greater", self, other)

    def __ge__(self, other):
        return self.graph.node("GreaterOrEqual", self, other)

    def __lt__(self, other):
        return self.graph.node("Less", self, other)

    def __le__(self, other):
        return self.graph.node("LessOrEqual", self, other)

    def equals(self, other):
        return self.graph.node("Equal", self, other)

    def abs(self):
        return self.graph.node("Abs", self)

    def exp(self):
        return self.graph.node("Exp", self)

    def log(self):
        return self.graph.node("Log", self)

    def sigmoid(self):
        return self.graph.node("Sigmoid", self)

    def softplus(self):
        """log(1 + exp(self)), without overflow."""
        # Not by the node Softplus: runtimes differ in how they avoid overflow.
        return self.graph.maximum(self, 0.0) + ((-self.abs()).exp() + 1.0).log()

    def sum(self, axis, keepdims=False):
        return self.graph.node("ReduceSum", self, [axis], keepdims=int(keepdims))

    def max(self, axis, keepdims=False):
        return self.graph.node("ReduceMax", self, [axis], keepdims=int(keepdims))

    def log_sum_exp(self, axis, keepdims=False):
        """log(sum(exp(self))) along an axis, without overflow."""
        highest = self.max(axis, keepdims=True)
        total = (self - highest).exp().sum(axis, keepdims=True).log() + highest
        return total if keepdims else total.squeeze(axis)

    def argmax(self, axis):
        """The first place of the largest value, with the axis kept."""
        return self.graph.node("ArgMax", self, axis=axis, keepdims=1)

    def cast(self, dtype):
        return self.graph.node("Cast", self, to=dtype)

    def number(self):
        """Truth values or counts as float64."""
        return self.cast(DOUBLE)

    def transposed(self, *axes):
        return self.graph.node("Transpose", self, perm=list(axes))

    def unsqueeze(self, *axes):
        return self.graph.node("Unsqueeze", self, list(axes))

    def squeeze(self, *axes):
        return self.graph.node("Squeeze", self, list(axes))

    def reshaped(self, *shape):
        """With a 0 in the shape, a length stays as it is. (A -1, which follows from the others, can't have no rows.)"""
        return self.graph.node("Reshape", self, list(shape))

    def columns(self, start, stop):
        """Entries start, ..., stop - 1 of the last axis."""
        return self.graph.node("Slice", self, [start], [stop], [-1])

    def take(self, indices, axis):
        """Entries by constant indices, or by the same indices for all rows."""
        return self.graph.node("Gather", self, indices, axis=axis)

    def take_along(self, indices):
        """Entries of every row by indices of its own, along the last axis."""
        return self.graph.node("GatherElements", self, indices, axis=-1)

    def descending(self, n):
        """The n largest entries of every row, largest first, and their places; of equal ones the first comes first."""
        return self.graph.node("TopK", self, [n], n_outputs=2, axis=-1)
