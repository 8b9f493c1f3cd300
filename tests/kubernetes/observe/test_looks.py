"""Looks at a cluster parts of which answer nobody: what is still known, told and done.

Time is the event loop's and stands still while anything can run, so that seconds of silence cost
nothing. Source: docs/kubernetes/one-hand.md "What a look costs".
"""

from __future__ import annotations

from typing import Final

from duramen_operator.names import FINALIZER
from duramen_operator.observe.questions import ANSWER_S, SLOT_COUNT, UNANSWERED_COUNT_MAX
from duramen_operator.plan.observed import EVERY_NAMESPACE, AdminView
from duramen_operator.plan.steps import Call, Status
from duramen_operator.serving.cluster_admin import LOOK_S
from tests.component.still_clock import run_still
from tests.kubernetes.observe.asked_cluster import nobody
from tests.kubernetes.observe.pass_world import RESYNC_S, Passed, PassWorld
from tests.kubernetes.plan.archive_world import make_policy
from tests.kubernetes.plan.worlds import make_space

NAMES: Final = [f"log-{index:02}" for index in range(12)]
PATHS: Final = [f"shop/{name}" for name in NAMES]
SILENT: Final = ("shop/log-00", "shop/log-01")
DELETE: Final = {"deletionPolicy": "Delete"}


def is_in(view: AdminView, path: str) -> bool:
    """Whether a log was described."""
    assert view.logs is not None
    return "log" in view.logs[path]


def is_hurried(done: Passed, path: str) -> bool:
    """Whether the plan was not sure of this log alone, and the next look comes at once."""
    return done.plan.unsure == frozenset({path}) and done.wait_s == 0


def test_silent_logs_are_unknown_and_nothing_else_is() -> None:
    async def scenario() -> None:
        world = PassWorld()
        world.add_logs(NAMES)
        await world.settle()
        world.asked.is_silent = lambda _, subject: subject in SILENT
        done = await world.do_pass()
        assert done.view.is_reachable
        assert [path for path in PATHS if not is_in(done.view, path)] == list(SILENT)
        assert done.look_s <= 2 * ANSWER_S
        assert world.ready("log-00") == "Unknown/NotAnswered"
        assert world.ready("log-02") == "True/AsWanted"
        world.asked.is_silent = nobody
        await world.settle()
        assert world.ready("log-00") == "True/AsWanted"

    run_still(scenario())


def test_while_no_tail_is_answered_logs_are_changed_and_deleted() -> None:
    async def scenario() -> None:
        world = PassWorld()
        world.add_logs(NAMES)
        world.add_logs(["goes"], **DELETE)
        world.world.find("Log", "goes")["metadata"]["finalizers"] = [FINALIZER]
        world.state.find_log("shop", "log-03").append(5, 100)
        await world.settle()
        world.asked.is_silent = lambda sort, _: sort == "tail"
        world.asked.forget()
        world.world.change("Log", "log-04", retention={"age": "1h"})
        world.leave("goes")
        for done in await world.do_passes(3):
            assert done.look_s <= 2 * ANSWER_S
        assert world.state.find_log("shop", "log-04").config.to_json()["retention"]["age"] == "1h"
        assert "goes" not in world.world.names("Log")
        assert sorted(call.method for call in world.world.calls) == ["DELETE", "PATCH"]
        assert world.world.find("Log", "log-03")["status"]["tail"] == 5, "as it was known"
        assert not (await world.do_pass()).steps(Status, Call)

    run_still(scenario())


def test_no_more_is_asked_of_a_sort_that_is_not_answered_and_others_have_their_slots() -> None:
    async def scenario() -> None:
        world = PassWorld()
        world.add_logs(f"log-{index:03}" for index in range(90))
        world.asked.is_silent = lambda sort, _: sort == "tail"
        world.asked.more_s = 0.0001
        done = await world.do_pass()
        assert UNANSWERED_COUNT_MAX <= world.asked.count("tail") <= SLOT_COUNT
        assert {world.asked.count(sort) for sort in ("description", "segments", "placement")} == {
            90
        }
        assert done.look_s < 1.2 * ANSWER_S, "they are waited for once"
        assert done.view.logs is not None
        assert all(log["violations"] == 0 for log in done.view.logs.values())
        assert {log["tail"] for log in done.view.logs.values()} == {None}

    run_still(scenario())


def test_logs_that_never_answer_keep_nobody_else_from_being_read() -> None:
    async def scenario() -> None:
        world = PassWorld()
        world.add_logs(NAMES)
        silent = set(PATHS[:6])
        world.asked.is_silent = lambda sort, subject: sort == "description" and subject in silent
        await world.do_passes(3)
        for _ in range(4):
            done = await world.do_pass()
            assert [path for path in PATHS if is_in(done.view, path)] == PATHS[6:]
            assert done.view.stale_logs == frozenset()
            assert done.wait_s == RESYNC_S, "who does not answer is not asked in a hurry"
        world.asked.forget()
        await world.do_passes(4)
        assert set(world.asked.subjects("description")) == set(PATHS), "they have turns, too"
        silent.remove(PATHS[5])
        await world.do_passes(3)
        assert world.ready("log-05") == "True/AsWanted"

    run_still(scenario())


def test_tails_that_are_refused_at_once_are_asked_last() -> None:
    async def scenario() -> None:
        world = PassWorld()
        world.add_logs(NAMES)
        world.asked.refuse = lambda sort, subject: sort == "tail" and subject in PATHS[:6]
        await world.do_passes(3)
        done = await world.do_pass()
        assert done.view.logs is not None
        assert [path for path in PATHS if done.view.logs[path]["tail"] is None] == PATHS[:6]

    run_still(scenario())


def test_the_end_of_a_look_ends_the_asking_and_keeps_what_was_read() -> None:
    async def scenario() -> None:
        world = PassWorld()
        world.add_logs(f"log-{index:03}" for index in range(300))
        world.asked.answer_s = 0.2
        done = await world.do_pass()
        assert done.look_s == LOOK_S
        assert done.view.logs is not None
        read = [path for path in done.view.logs if is_in(done.view, path)]
        assert 100 < len(read) < 200
        assert len(done.steps(Status)) >= len(read)
        assert world.ready("log-299") == "Unknown/NotYetObserved", "nothing is said of it"
        assert (done.view.look_again_s, done.wait_s) == (0, 0)
        await world.settle()
        assert world.ready("log-299") == "True/AsWanted"
        assert world.world.condition("Log", "log-120", "PlacementSatisfied")["status"] == "True"

    run_still(scenario())


def test_too_much_silence_is_looked_at_again_soon_and_not_at_once() -> None:
    async def scenario() -> None:
        world = PassWorld()
        world.add_logs(NAMES)
        world.asked.is_silent = lambda sort, _: sort == "description"
        done = await world.do_pass()
        assert world.asked.count("description") == SLOT_COUNT
        assert 0 < done.wait_s < RESYNC_S

    run_still(scenario())


# --- Old facts ------------------------------------------------------------------------------------


def make_crowd() -> PassWorld:
    """A cluster of which a look reads a handful, and as many logs as would take five."""
    return PassWorld(least_count=1)


async def find_calm(world: PassWorld) -> str:
    """A log that the next look leaves alone, since this one reads it."""
    view = (await world.do_pass()).view
    assert view.logs is not None
    return min(set(view.logs) - view.stale_logs).removeprefix("shop/")


def test_what_is_changed_outside_is_set_again_when_its_turn_comes() -> None:
    async def scenario() -> None:
        world = make_crowd()
        world.add_logs([f"log-{index:02}" for index in range(60)], retention={"age": "1h"})
        await world.settle()
        world.world.calls.clear()
        for name in ("log-05", "log-55"):
            world.state.change_log("shop", name, {"retention": {"age": "2h"}}, None)
        for done in await world.do_passes(6):
            called = {f"shop/{one.about.name}" for one in done.steps(Call)}
            assert not called & done.view.stale_logs
        assert sorted(call.about.name for call in world.world.calls) == ["log-05", "log-55"]

    run_still(scenario())


def test_no_call_is_made_from_old_facts_and_the_next_look_reads_anew() -> None:
    async def scenario() -> None:
        world = make_crowd()
        world.add_logs(f"log-{index:02}" for index in range(60))
        await world.settle()
        name = await find_calm(world)
        path = f"shop/{name}"
        done = await world.do_pass(lambda: world.world.change("Log", name, retention={"age": "1h"}))
        assert path in done.view.stale_logs
        assert not done.steps(Call, Status)
        assert is_hurried(done, path)
        done = await world.do_pass()
        assert path not in done.view.stale_logs
        assert [call.about.name for call in done.steps(Call)] == [name]

    run_still(scenario())


def test_which_log_a_new_object_stands_for_is_not_told_from_old_facts() -> None:
    async def scenario() -> None:
        world = make_crowd()
        names = [f"log-{index:02}" for index in range(60)]
        for name in names:
            world.state.ensure_log("shop", name, {})
        world.world.add(make_policy({"onClosedSegments": True}))
        await world.settle()
        name = await find_calm(world)
        world.state.delete_log("shop", name)
        log_id = world.state.ensure_log("shop", name, {})[1]["log_id"]
        done = await world.do_pass(lambda: world.add_object(name))
        assert is_hurried(done, f"shop/{name}")
        await world.settle()
        assert world.world.find("Log", name)["status"]["logId"] == log_id

    run_still(scenario())


def test_a_deleted_object_is_not_let_go_by_old_facts() -> None:
    async def scenario() -> None:
        world = make_crowd()
        world.add_logs([f"log-{index:02}" for index in range(60)], **DELETE)
        for name in world.world.names("Log"):
            world.world.find("Log", name)["metadata"]["finalizers"] = [FINALIZER]
        await world.settle()
        name = await find_calm(world)
        done = await world.do_pass(lambda: world.leave(name))
        assert is_hurried(done, f"shop/{name}")
        assert not done.plan.steps
        await world.do_passes(2)
        assert [call.method for call in world.world.calls] == ["DELETE"]
        assert name not in world.world.names("Log")

    run_still(scenario())


def test_what_a_call_came_to_is_read_in_the_next_look() -> None:
    async def scenario() -> None:
        world = make_crowd()
        world.add_logs(f"log-{index:02}" for index in range(60))
        await world.settle()
        world.world.change("Log", "log-33", retention={"age": "1h"})
        assert len((await world.do_pass()).steps(Call)) == 1
        world.asked.forget()
        await world.do_pass()
        assert world.asked.subjects("description")[0] == "shop/log-33"
        assert world.ready("log-33") == "True/AsWanted"

    run_still(scenario())


# --- Namespaces and lists -------------------------------------------------------------------------


def test_a_silent_namespace_is_a_problem_of_its_own() -> None:
    async def scenario() -> None:
        world = PassWorld()
        world.add_logs(NAMES)
        world.state.ensure_namespace("fair", {})
        world.world.add(make_space("fair"))
        world.asked.is_silent = lambda sort, subject: (sort, subject) == ("namespace", "fair")
        done = await world.do_pass()
        assert done.view.namespaces is not None
        assert done.view.namespaces["fair"]["problem"]["code"] == "unreachable"
        assert done.view.namespaces["shop"]["logs"] == len(NAMES)
        assert all(is_in(done.view, path) for path in PATHS)

    run_still(scenario())


def test_logs_that_cannot_be_listed_stay_known_and_the_policy_is_not_sure() -> None:
    async def scenario() -> None:
        world = PassWorld()
        for name in NAMES:
            world.state.ensure_log("shop", name, {})
        world.state.ensure_namespace("fair", {})
        world.world.add(make_policy({"onClosedSegments": True}))
        await world.settle()
        assert world.world.condition("ArchivePolicy", "all", "Archived")["status"] == "True"
        for question, unlisted in (
            (("list", "shop"), "shop"),
            (("namespaces", ""), EVERY_NAMESPACE),
        ):
            world.asked.is_silent = lambda *asked, silent=question: asked == silent
            done = await world.do_pass()
            assert done.view.unlisted == {unlisted}
            assert done.view.logs is not None and sorted(done.view.logs) == PATHS
            said = world.world.condition("ArchivePolicy", "all", "Archived")
            assert said["status"] == "Unknown"

    run_still(scenario())
