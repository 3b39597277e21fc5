"""All ranks have the same plan, or all of them raise the same error before anything moves."""

import json
from collections.abc import Callable

from sshsdp_fsdp_runtime.plan import Plan, PlanError
from sshsdp_zerosm import Transport


def agree_on_plan(transport: Transport, build: Callable[[], Plan]) -> Plan:
    """Build the plan on every rank and compare. Collective.

    Raises:
        PlanError: the plan was refused, on this rank or on another one.
        RuntimeError: plans differ; the text names the parts and the ranks.
    """
    plan, refusal = None, None
    try:
        plan = build()
        content = {"sections": plan.sections()}
    except Exception as error:
        refusal = error
        content = {"error": {"text": str(error)}}
    answers = [json.loads(m) for m in transport.exchange(json.dumps(content).encode())]
    if refusal is not None:
        raise refusal
    for rank, answer in enumerate(answers):
        if "error" in answer:
            raise PlanError(f"rank {rank} refused its plan: {answer['error']['text']}")
    assert plan is not None
    first = answers[0]["sections"]
    for rank, answer in enumerate(answers):
        differing = [key for key, value in first.items() if answer["sections"].get(key) != value]
        if differing:
            raise RuntimeError(
                f"expected the same plan on all ranks, got rank {rank} differing from rank 0 in: "
                f"{', '.join(differing)}; start every rank with the same model, rules and versions"
            )
    return plan
