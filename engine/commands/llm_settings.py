"""The settings of a language model that the options of a verb ask for."""

import argparse

from engine.errors import UsageError
from engine.llm.budget import parse_limit, parse_price
from engine.llm.prompts import parse_parts
from engine.llm.session import LlmSettings, parse_door


def llm_settings(arguments: argparse.Namespace) -> LlmSettings:
    """The settings of what `add_llm` read; of `--llm-judge`, `--prompt-profile` and `--prompt-parts` too, where a verb has
    them. Raises UsageError."""
    batch, replay = parse_door(arguments.llm)
    if arguments.llm_answer_tokens < 1:
        raise UsageError("must be at least 1", "--llm-answer-tokens", "omit it for 6000")
    if not 0 < arguments.llm_timeout < 86_400:
        raise UsageError("must be above 0 s and below one day", "--llm-timeout", "omit it for 180")
    if not 1 <= arguments.llm_concurrency <= 64:
        raise UsageError("must be from 1 to 64", "--llm-concurrency", "omit it")
    return LlmSettings(
        model=arguments.llm_model,
        plan_model=arguments.llm_plan_model,
        judge_model=getattr(arguments, "llm_judge", ""),
        limit=parse_limit(arguments.llm_budget) if arguments.llm_budget else None,
        price=parse_price(arguments.llm_price) if arguments.llm_price else None,
        profile=getattr(arguments, "prompt_profile", "diagnosis"),
        parts=parse_parts(getattr(arguments, "prompt_parts", "")),
        concurrency=arguments.llm_concurrency,
        timeout_s=arguments.llm_timeout,
        answer_tokens=arguments.llm_answer_tokens,
        schema=not arguments.llm_free_form,
        batch=batch,
        replay=replay,
        prompts=arguments.llm_log == "full",
    )
