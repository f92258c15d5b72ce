"""What policies read of a pass after the prefill, recorded where it is not there yet."""

from kvjax import evidence as ev
from kvjax.checks import check_language_model
from kvjax.prefill.prefilled import Prefilled
from kvjax.prefill.probe_checks import check_model
from kvjax.prefill.run import needs_of


def second_pass(lm, pre: Prefilled, needs: object) -> Prefilled:
    """The prefilled prompts with all that a policy needs of a second pass; as they are if it needs none.

    Args:
        lm: the model `pre` came from.
        pre: prompts from `kvjax.prefill`; it stays as it is, and shares keys and values with the result.
        needs: as in `kvjax.prefill`.

    Raises:
        TypeError, ValueError: no prefilled prompts, or another model's; a probe whose tokens only the caller knows (`kvjax.probe`).
    """
    check_language_model(lm)
    check_model(lm, pre)
    lacking = ev.missing(pre.needs, needs_of(needs))
    for need in ev.ordered(need for need in lacking if need.second_pass):
        pre = need.record(lm, pre)
    return pre
