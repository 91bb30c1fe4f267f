"""The steps of TRL. Runs in an environment of its own, which has no Oncurve: ``trl_side.py JOB.json``."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from rows import Job, reward
from side import Link, Stopwatch
from transformers import AutoModelForCausalLM, AutoTokenizer, StoppingCriteria, StoppingCriteriaList, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class AtLength(StoppingCriteria):
    """Each row ends at a length of its own; the padding that follows is its end-of-sequence token."""

    def __init__(self, lengths: list[int], prompt_tokens: int) -> None:
        self._ends = torch.tensor(lengths) - 1 + prompt_tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        return input_ids.shape[1] >= self._ends


class Steps(TrainerCallback):
    """A step for each line of standard input; one of ours is ``epochs`` of TRL's."""

    def __init__(self, link: Link, watch: Stopwatch, epochs: int) -> None:
        self._link, self._watch, self._epochs = link, watch, epochs

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self._epochs == 0:
            self._link.wait()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self._epochs == 0:
            self._link.done(self._watch)


def main(job: Job) -> None:
    torch.set_num_threads(1)
    link, watch, row = Link(), Stopwatch(), job.row
    model = AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(job.model)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    rows = row.prompts * row.group
    batch = min(8, rows)  # TRL's default
    config = GRPOConfig(
        output_dir=job.work,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=rows // batch,
        num_generations=row.group,
        num_iterations=row.epochs,
        max_completion_length=row.completion_tokens,
        beta=row.kl,
        loss_type="grpo",
        learning_rate=1e-6,
        max_steps=job.steps * row.epochs,
        save_strategy="no",
        report_to="none",
        logging_steps=1000,
        disable_tqdm=True,
        shuffle_dataset=False,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_json(job.data),
        processing_class=tokenizer,
        callbacks=[Steps(link, watch, row.epochs)],
    )
    if row.varied:
        stops = StoppingCriteriaList([AtLength(row.lengths(), row.prompt_tokens)])
        model.generate = functools.partial(model.generate, stopping_criteria=stops)
    trainer._generate_single_turn = watch.timed("sampling", trainer._generate_single_turn)
    trainer.training_step = watch.timed("forward and backward", trainer.training_step)
    score = trainer._get_per_token_logps_and_entropies

    def scored(*arguments: Any, **keywords: Any) -> Any:
        # Without gradient these are the old policy's or the reference's; with it they are the training forward.
        way = score if torch.is_grad_enabled() else watch.timed("scoring", score)
        return way(*arguments, **keywords)

    trainer._get_per_token_logps_and_entropies = scored
    create = trainer.create_optimizer

    def create_optimizer(*arguments: Any, **keywords: Any) -> Any:
        optimizer = create(*arguments, **keywords)
        optimizer.step = watch.timed("optimizer", optimizer.step)
        return optimizer

    trainer.create_optimizer = create_optimizer
    link.ready(parameters=sum(p.numel() for p in model.parameters()))
    trainer.train()


if __name__ == "__main__":
    main(Job.load(Path(sys.argv[1])))
