"""MLRHLoss in Hugging Face's Trainer, and a pipeline for texts that answers with label sets.

The loss becomes a part of the model, `model.mlrh_loss`: so the optimizer has its biases, they move to the device of the
model and are in its checkpoints. `from_pretrained` knows nothing of it; what a loaded model needs to answer, sizes and
size biases, is therefore in `model.config.mlrh`, too.
"""

import copy
from collections.abc import Mapping

import torch

try:
    from transformers import TextClassificationPipeline, TrainerCallback
except ImportError as error:
    raise ImportError(
        'mlrh.torch.hugging_face needs Transformers; install it with: pip install "transformers>=5" "accelerate>=1.1"'
    ) from error

from mlrh.torch.decisions import decide
from mlrh.torch.loss import MLRHLoss

__all__ = ["LabelSetPipeline", "TrainerLoss", "loss_of"]

NAME = "mlrh_loss"  # of the loss in a model
# Options of the stock pipeline that label sets have no use for, and what to use in their place.
INSTEAD = {
    "top_k": "For the k likeliest labels use decision=('top', k).",
    "function_to_apply": "The probability of each label is in the answer's 'marginals'.",
}


class TrainerLoss(TrainerCallback):
    """What `Trainer` takes as `compute_loss_func`, and among its `callbacks`: the mean of an MLRHLoss over rows.

    The mean is over all rows of an optimizer step, whatever number of batches they come in. Trainer says how many
    entries the labels of the step have, rows times labels, and expects the loss to be divided by its share of them:
    neither a mean over the rows of a batch, which grows with `gradient_accumulation_steps`, nor a sum divided by that
    number, which is too small by the number of labels, is right.

    As a callback it writes sizes and biases to the model's config before the model is saved.

    Parameters
    ----------
    model : PreTrainedModel with logits (..., n_labels)
        The loss becomes a module of it, so that biases that are Parameters are learned.
    criterion : MLRHLoss with reduction="mean", for dense labels

    Examples
    --------
    With `loss = TrainerLoss(model, MLRHLoss.from_targets(Y, size_bias=True))` it is
    `Trainer(model, arguments, train_dataset=rows, compute_loss_func=loss, callbacks=[loss])`.
    """

    def __init__(self, model, criterion):
        _check(criterion)
        self.model, self.criterion = model, criterion.to(model.device)
        setattr(model, NAME, self.criterion)

    def __call__(self, outputs, labels, num_items_in_batch=None):
        """The loss of outputs of the model, a number: its share in the mean over num_items_in_batch entries."""
        logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
        loss = self.criterion(logits, labels)
        return loss if num_items_in_batch is None else loss * (labels.numel() / num_items_in_batch)

    def on_train_begin(self, args, state, control, **kwargs):
        learns = any(bias.requires_grad for bias in self.criterion.parameters())
        if learns and args.world_size > 1 and args.ddp_find_unused_parameters is not False:
            # The loss is not a part of the model's forward, where DDP would look for parameters in use.
            raise ValueError(
                "To learn biases of the loss in several processes, TrainingArguments must have "
                f"ddp_find_unused_parameters=False; got {args.ddp_find_unused_parameters}."
            )
        self._write()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_save:  # else a GPU would be waited for in every step
            self._write()

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_save:
            self._write()

    def on_evaluate(self, args, state, control, **kwargs):
        self._write()  # the best model is saved after it was evaluated

    def on_train_end(self, args, state, control, **kwargs):
        self._write()

    def _write(self):
        """Sizes and biases into the config; a label space has no form there, and sizes of an earlier loss go."""
        loss, config = self.criterion, self.model.config
        if loss.label_space is None:
            bias, is_learned = loss.size_bias, isinstance(loss.size_bias, torch.nn.Parameter)
            config.mlrh = {
                "min_labels": loss.min_labels,
                "max_labels": loss.max_labels,
                "size_bias": None if bias is None else bias.detach().float().tolist(),
                "learned": is_learned,
            }
        elif hasattr(config, "mlrh"):
            del config.mlrh


def loss_of(model):
    """The MLRHLoss of a model: the one it was trained with in this process, or that of its config.

    A size bias that was learned is a Parameter, so that `TrainerLoss(model, loss_of(model))` goes on with it.
    """
    found = getattr(model, NAME, None)
    if found is not None:
        return found
    values = getattr(model.config, "mlrh", None)
    if values is None:
        raise ValueError(
            "The model must have an MLRHLoss, or its sizes in its config; got a model with neither. Train it with "
            "Trainer(..., compute_loss_func=loss, callbacks=[loss]), which writes them, or set "
            f"model.{NAME} to the MLRHLoss that it was trained with."
        )
    size_bias = values["size_bias"]
    if size_bias is not None:
        size_bias = torch.tensor(size_bias)
        size_bias = torch.nn.Parameter(size_bias) if values["learned"] else size_bias
    return MLRHLoss(values["max_labels"], min_labels=values["min_labels"], size_bias=size_bias)


class LabelSetPipeline(TextClassificationPipeline):
    """The text classification pipeline for a model trained with MLRHLoss: answers are label sets.

    An answer is {"labels": names of the labels in the set, "probability": that of the set, "marginals": {name: P(label)
    for all labels}}, where the stock pipeline has a sigmoid or a softmax of logits, neither of which is a probability
    of this model. It takes texts as the stock one does, and `decision`, at a call or for good: how the set is chosen,
    see `mlrh.torch.decide`. The probability of a set that is not in the label space, as answers for a metric may be, is
    0. `top_k` and `function_to_apply` of the stock one are refused, since they rank and transform single labels.

    Examples
    --------
    `LabelSetPipeline(model=model, tokenizer=tokenizer)(["a text", "another"], decision="f1")`
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._loss = copy.deepcopy(loss_of(self.model)).cpu()  # where outputs are when they are made an answer

    def __call__(self, inputs, **kwargs):
        """The answers for texts; of one text, a list with its answer."""
        if isinstance(inputs, list) and not inputs:  # the stock pipeline looks at the first
            self._sanitize_parameters(**kwargs)
            return []
        return super().__call__(inputs, **kwargs)

    def _sanitize_parameters(self, decision=None, **tokenizer_kwargs):
        for name in INSTEAD.keys() & tokenizer_kwargs.keys():
            got = f"{name}={tokenizer_kwargs[name]!r}"
            raise ValueError(f"LabelSetPipeline answers with label sets and has no {name}; got {got}. {INSTEAD[name]}")
        return tokenizer_kwargs, {}, {} if decision is None else {"decision": decision}

    def postprocess(self, model_outputs, decision="exact_match"):
        """The answer for the outputs of one text."""
        names = self.model.config.id2label
        distribution = self._loss.distribution(model_outputs["logits"].detach().to(torch.float64))
        sets = decide(distribution, decision)
        return {
            "labels": [names[k] for k in sets[0].nonzero()[:, 0].tolist()],
            "probability": distribution.log_prob(sets).exp().item(),
            "marginals": {names[k]: share for k, share in enumerate(distribution.marginals()[0].tolist())},
        }


def _check(criterion):
    """Raise unless the mean of a loss over the rows of a batch can be made one over all rows of a step."""
    if not isinstance(criterion, MLRHLoss):
        raise ValueError(f"criterion must be an MLRHLoss; got {type(criterion).__name__}.")
    if criterion.reduction != "mean" or criterion.weight is not None:
        raise ValueError(
            f"criterion must have reduction='mean' and no weight, since Trainer averages over rows; got {criterion!r}."
        )
    if criterion.padding_index is not None:
        raise ValueError(
            "criterion must be for dense labels of 0 and 1, since Trainer counts the entries of labels to know the "
            f"number of rows; got padding_index={criterion.padding_index}."
        )
