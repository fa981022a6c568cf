"""A network as lm-evaluation-harness asks it: likelihoods of texts, and answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM

from shoestring.core.errors import RunError
from shoestring.core.seeds import derive
from shoestring.models.generate import Drawing, generate
from shoestring.runs.likelihood import score_tokens
from shoestring.runs.preferences import NetworkJudge

_MOST_TOKENS = 256
"""Of an answer, where the task does not say."""
_ARGUMENTS = {"until", "max_gen_toks", "max_new_tokens", "do_sample", "temperature", "top_k", "top_p"}
"""What a task may say about answers."""


class HarnessModel(TemplateLM):
    """A text begins after the end of a document, and tokens are predicted from the last `length` before them."""

    def __init__(self, judge: NetworkJudge):
        super().__init__()
        self._judge = judge

    @property
    def eot_token_id(self) -> int:
        """The token before a text."""
        assert self._judge.tokenizer.end is not None, "was refused"
        return self._judge.tokenizer.end

    def tok_encode(self, string: str, **_: Any) -> list[int]:
        """The ids of a text; there are no special tokens in it."""
        return [int(index) for index in self._judge.tokenizer.encode(string)]

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Of each (context, continuation): the log-likelihood, and whether it is what the network would say."""
        for request in requests:
            if not self.tok_encode(request.args[1]):
                raise RunError(f"a task of the harness asks for the likelihood of {request.args[1]!r}: no tokens")
        found: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        return found

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[tuple[str, str], list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        return self._scored(([*context, *rest], len(context)) for _, context, rest in requests)

    def loglikelihood_rolling(self, requests: list[Instance], **_: Any) -> list[float]:
        """The log-likelihood of each whole text."""
        texts = (([self.eot_token_id, *self.tok_encode(request.args[0])], 1) for request in requests)
        return [log_p for log_p, _ in self._scored(texts)]

    def _scored(self, texts: Iterable[tuple[list[int], int]]) -> list[tuple[float, bool]]:
        judge = self._judge
        scored = score_tokens(judge.model, judge.length, list(texts), judge.tokenizer.vocab_size)
        return [(each.log_p, each.greedy) for each in scored]

    def generate_until(self, requests: list[Instance], **_: Any) -> list[str]:
        """The answer to each prompt, up to the first of its stop texts."""
        return [self._answer(number, *request.args) for number, request in enumerate(requests)]

    def _answer(self, number: int, prompt: str, arguments: Mapping[str, Any]) -> str:
        if unknown := sorted(arguments.keys() - _ARGUMENTS):
            raise RunError(f"generation_kwargs.{unknown[0]}: not known here; known: {', '.join(sorted(_ARGUMENTS))}")
        judge, device = self._judge, next(self._judge.model.parameters()).device
        begun = torch.tensor([self.tok_encode(prompt) or [self.eot_token_id]], device=device)
        tokens = int(arguments.get("max_gen_toks", arguments.get("max_new_tokens", _MOST_TOKENS)))
        generator = torch.Generator(device).manual_seed(derive(number, "answer"))
        row = generate(
            judge.model, begun, tokens, length=judge.length, drawing=_drawing(arguments), generator=generator
        )[0, begun.shape[1] :].tolist()
        ids = row[: row.index(self.eot_token_id)] if self.eot_token_id in row else row
        text, until = judge.tokenizer.decode(ids), arguments.get("until") or []
        for stop in [until] if isinstance(until, str) else until:
            text = text.split(stop)[0] if stop else text
        return text


def _drawing(arguments: Mapping[str, Any]) -> Drawing:
    """How the tokens of an answer are drawn: the likeliest ones, unless the task says `do_sample`."""
    temperature = float(arguments.get("temperature", 0.0 if not arguments.get("do_sample") else 1.0))
    if not arguments.get("do_sample", temperature > 0):
        temperature = 0.0
    return Drawing(temperature=temperature, top_k=arguments.get("top_k"), top_p=arguments.get("top_p"))
