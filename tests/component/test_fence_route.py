"""Setting a log's fencing token through the write proxy: who is asked, and what became of it.

The sequencers are scripted (`writeproxy_world`); what they do with a token is tested on the cores.
Source: docs/protocol/rest.md "Fencing token", docs/protocol/wire.md "`POST /s/control`".
"""

from duramen.errors import DuramenError
from duramen.ids import SequencerId
from duramen.wire.sequencer_calls import Redirect, encode_redirect
from tests.component.writeproxy_world import RECORDS, World, run

FENCE = RECORDS.replace("/records", ":fence")
TAIL = {"seq_num": 4, "timestamp": "1970-01-01T00:00:00.005Z", "lsn": "e1n2", "dlsn": "e1n2s0"}


def test_the_fencing_token_is_set_at_the_owner() -> None:
    async def scenario(world: World) -> None:
        first, second = world.sequencers
        first.control_answers = [
            (200, encode_redirect(Redirect(SequencerId(second.name), second.url)))
        ]
        busy = DuramenError("log_unavailable", "taken over").problem()
        second.control_answers = [(503, busy), (200, {"tail": TAIL})]
        status, answer = await world.call("POST", FENCE, b'{"token": "t", "expected": ""}')
        assert (status, answer) == (200, {"token": "t", "tail": TAIL})
        message = {"op": "fence", "log_id": "5", "token": "t", "expected": ""}
        assert first.controls[0] == second.controls[0] == second.controls[1] == message
        for body in (b"{}", b'{"token": 1}', b'{"token": "t", "more": 1}'):
            assert (await world.call("POST", FENCE, body))[0] == 400

    run(scenario, 2)


def test_a_token_of_open_fate_is_set_again_and_only_an_answer_settles_it() -> None:
    async def scenario(world: World) -> None:
        lost = DuramenError("append_uncertain", "its segment was sealed").problem()
        done = {"tail": TAIL}
        world.first.control_answers = [(503, lost), (200, {"no": "answer"}), (200, done)]
        status, answer = await world.call("POST", FENCE, b'{"token": "t"}')
        assert (status, answer["tail"]) == (200, done["tail"])
        # The refusal is the repetition's: the first try may have set the token before it.
        ended = DuramenError("log_ended", "no more").problem()
        world.first.control_answers = [(503, lost), (409, ended)]
        status, problem = await world.call("POST", FENCE, b'{"token": "t"}')
        assert (status, problem["code"], problem["uncertain"]) == (503, "append_uncertain", True)
        assert "log_ended" in problem["detail"]
        world.first.control_answers = [(409, ended)]
        status, problem = await world.call("POST", FENCE, b'{"token": "t"}')
        assert (status, problem["code"], problem["uncertain"]) == (409, "log_ended", False)

    run(scenario)


def test_a_token_with_an_expected_one_is_never_sent_again_once_its_fate_is_open() -> None:
    async def scenario(world: World) -> None:
        busy = DuramenError("log_unavailable", "taken over").problem()
        for open_fate in (
            (503, DuramenError("append_uncertain", "sealed").problem()),
            (200, {"no": "answer"}),
            (200, {"redirect": {"url": "nowhere"}}),
        ):
            world.first.controls.clear()
            world.first.control_answers = [(503, busy), open_fate, (200, {"tail": {}})]
            body = b'{"token": "t", "expected": "s"}'
            status, problem = await world.call("POST", FENCE, body)
            assert (status, problem["code"]) == (503, "append_uncertain")
            assert len(world.first.controls) == 2, "the busy one was certain, the next was not"

    run(scenario)
