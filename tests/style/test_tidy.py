"""The repository keeps its own house style: one test a rule, and for each a proof that it can fail.

Reads the files that git knows or would take (tracked, and untracked but not ignored); outside a
checkout, as in a source archive, every file that is not a cache. The rules themselves are in
`tidiness.py`, their reasons in CONTRIBUTING.md.
"""

import textwrap

import pytest

from tests.style import names, tidiness
from tests.style.tidiness import Module
from tests.style.tree import ROOT, assert_tidy, list_paths, read_modules

NOSE = '"""What it is.\n\nWho calls it.\n"""\n'


# --- The repository ------------------------------------------------------------------------------


def test_the_walk_sees_the_repository() -> None:
    paths = [module.path for module in read_modules()]
    assert "libs/common/duramen/__init__.py" in paths
    assert "tests/style/test_tidy.py" in paths


def test_every_module_opens_with_a_nose() -> None:
    assert_tidy([f for m in read_modules() for f in tidiness.find_nose_faults(m)])


def test_modules_functions_and_lines_are_short() -> None:
    assert_tidy([f for m in read_modules() for f in tidiness.find_size_faults(m)])


def test_nothing_is_marked_unfinished() -> None:
    kinds = (".py", ".md", ".toml", ".yaml", ".yml", ".sh", ".txt")
    names = [p for p in list_paths() if p.endswith(kinds) or p in {"Makefile", "Dockerfile"}]
    texts = [(name, (ROOT / name).read_text(encoding="utf-8")) for name in names]
    assert_tidy([f for name, text in texts for f in tidiness.find_unfinished(name, text)])


def test_tests_do_not_sleep() -> None:
    tests = [m for m in read_modules() if m.is_in("tests")]
    assert_tidy([f for m in tests for f in tidiness.find_sleeps(m)])


def test_tests_read_clocks_when_they_are_played() -> None:
    tests = [m for m in read_modules() if m.is_in("tests")]
    assert_tidy([f for m in tests for f in tidiness.find_stale_clocks(m)])


def test_no_order_rests_on_where_none_lies() -> None:
    # What the simulator plays; elsewhere nothing is to be the same run twice.
    played = [m for m in read_modules() if m.is_in("libs", "services")]
    assert_tidy([f for m in played for f in tidiness.find_sets_with_none(m)])


def test_nobody_reads_all_connections_of_the_machine() -> None:
    assert_tidy([f for m in read_modules() for f in tidiness.find_whole_tables(m)])


def test_tests_leave_other_threads_their_time() -> None:
    tests = [m for m in read_modules() if m.is_in("tests")]
    assert_tidy([f for m in tests for f in tidiness.find_replaced_clocks(m)])


def test_tests_copy_no_descriptor_that_may_be_anything() -> None:
    tests = [m for m in read_modules() if m.is_in("tests")]
    assert_tidy([f for m in tests for f in tidiness.find_copied_descriptors(m)])


def test_tests_change_nodes_as_those_who_are_overtaken() -> None:
    folders = ("tests/process", "tests/spark", "tests/kubernetes")
    tests = [m for m in read_modules() if any(map(m.is_in, folders))]
    assert_tidy(
        [
            fault
            for module in tests
            if module.path != "tests/process/metadata_nodes.py"
            for fault in tidiness.find_lone_writes(module)
        ]
    )


def test_cores_are_pure() -> None:
    cores = [m for m in read_modules() if m.is_in("libs/common/duramen/core")]
    assert_tidy([f for m in cores for f in tidiness.find_impurities(m)])


def test_the_library_documents_what_is_public() -> None:
    library = [m for m in read_modules() if m.is_in("libs/common/duramen")]
    assert_tidy([f for m in library for f in tidiness.find_undocumented(m)])


def test_names_say_something() -> None:
    assert_tidy(tidiness.find_name_faults(list_paths()))


def test_folders_are_not_crowded() -> None:
    assert_tidy(tidiness.find_crowded_folders(list_paths()))


def test_the_top_level_is_as_agreed() -> None:
    assert_tidy(tidiness.find_layout_faults(list_paths()))


def test_a_class_name_means_one_thing() -> None:
    assert_tidy(names.find_twin_classes(read_modules()))


def test_names_are_the_words_of_the_field() -> None:
    assert_tidy([f for m in read_modules() for f in names.find_old_names(m)])
    assert_tidy(names.find_old_modules(list_paths()))


# --- Each rule can fail --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["", "x = 1\n", '"""Too short."""\n', '"""' + "line\n" * 16 + '"""\n', "# no docstring\n"],
)
def test_a_bad_nose_is_found(text: str) -> None:
    assert tidiness.find_nose_faults(Module("libs/a.py", text))


def test_a_package_file_may_be_empty_or_short_but_not_nameless() -> None:
    assert not tidiness.find_nose_faults(Module("libs/__init__.py", ""))
    assert not tidiness.find_nose_faults(Module("libs/__init__.py", '"""One line."""\n'))
    assert tidiness.find_nose_faults(Module("libs/__init__.py", "x = 1\n"))


def test_good_source_has_no_faults() -> None:
    good = Module("libs/a.py", NOSE + 'def wait() -> None:\n    """Wait."""\n')
    assert not tidiness.find_nose_faults(good)
    assert not tidiness.find_size_faults(good)
    assert not tidiness.find_undocumented(good)
    assert not tidiness.find_impurities(good)


@pytest.mark.parametrize(
    "text",
    [
        NOSE + "x = 1\n" * 700,
        NOSE + "def grow() -> None:\n" + "    x = 1\n" * 70,
        NOSE + "class A:\n    async def grow(self) -> None:\n" + "        x = 1\n" * 70,
        NOSE + f"x = '{'y' * 100}'\n",
    ],
)
def test_long_source_is_found(text: str) -> None:
    assert tidiness.find_size_faults(Module("libs/a.py", text))


@pytest.mark.parametrize("word", ["TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK"])
def test_a_mark_of_unfinished_work_is_found(word: str) -> None:
    assert tidiness.find_unfinished("a.py", f"x = 1  # {word}: later\n")
    assert not tidiness.find_unfinished("a.py", f"{word}S are many\n")


def test_a_write_that_may_be_overtaken_is_found() -> None:
    bad = "async def f():\n    await store.set(path, data, version=found.version)\n"
    (fault,) = tidiness.find_lone_writes(Module("tests/process/a.py", bad))
    assert "change_node" in fault
    good = "async def f():\n    await change_node(store, path, change)\n    seen.set(1)\n"
    assert not tidiness.find_lone_writes(Module("tests/process/a.py", good))


def test_a_sleep_is_found() -> None:
    bad = "time.sleep(1)\nasyncio.sleep(0.01)\nsleep(delay)\nclock.sleep()\n"
    assert len(tidiness.find_sleeps(Module("tests/a.py", bad))) == bad.count("\n")
    assert not tidiness.find_sleeps(Module("tests/a.py", "asyncio.sleep(0)\n"))


@pytest.mark.parametrize(
    "bad",
    [
        "NOW_S = int(time.time())",
        "A: Final = dt.datetime.now(dt.UTC)",
        "B = [time.monotonic()]",
        "NOW = read_time()",
        "@pytest.mark.parametrize('end_s', [time.time() + 60])\ndef test_it(end_s): ...",
        "def make_call(until_s=time.time() + 60): ...",
        "class Call:\n    until_ns = time.time_ns()",
        "if is_here:\n    NOW_S = time.time()",
    ],
)
def test_a_clock_that_is_read_when_a_module_is_loaded_is_found(bad: str) -> None:
    assert len(tidiness.find_stale_clocks(Module("tests/a.py", bad))) == 1
    assert not tidiness.find_stale_clocks(Module("tests/a.py", "ENDS = {'a': lambda: time.time()}"))
    used = f"def f():\n{textwrap.indent(bad, '    ')}\n"
    assert not tidiness.find_stale_clocks(Module("tests/a.py", used))


@pytest.mark.parametrize("bad", ['Path("/proc/net" "/tcp")', 'open("/proc/self/net" "/tcp6")'])
def test_a_reader_of_all_connections_is_found(bad: str) -> None:
    assert len(tidiness.find_whole_tables(Module("tests/a.py", bad))) == 1
    said = '"""/proc/net' + '/tcp says the same."""'
    assert not tidiness.find_whole_tables(Module("tests/a.py", said))


@pytest.mark.parametrize(
    "bad",
    [
        'monkeypatch.setattr("duramen.runtime.identity.generations.time.sleep", finish)',
        'monkeypatch.setattr("time.monotonic", clock)',
        'patch.setattr(time, "time", clock)',
        'patch.setattr(generations.time, "sleep", finish)',
    ],
)
def test_a_clock_of_the_whole_process_that_is_replaced_is_found(bad: str) -> None:
    assert len(tidiness.find_replaced_clocks(Module("tests/a.py", bad))) == 1
    good = 'patch.setattr(generations, "time", clock)\npatch.setattr("a.times", 1)'
    assert not tidiness.find_replaced_clocks(Module("tests/a.py", good))


@pytest.mark.parametrize(
    "bad",
    [
        "for link in os.listdir('/proc/self/fd'): os.dup(int(link))",
        "for number in range(1_000): os.dup(number)",
        "socket.fromfd(find_number(), socket.AF_INET, socket.SOCK_STREAM)",
        "copy_socket(int(link.name))",
    ],
)
def test_a_descriptor_that_is_copied_by_number_is_found(bad: str) -> None:
    assert len(tidiness.find_copied_descriptors(Module("tests/a.py", bad))) == 1
    good = "os.dup(lock.descriptor)\nos.dup(file.fileno())\nos.dup2(found, 1)"
    assert not tidiness.find_copied_descriptors(Module("tests/a.py", good))


@pytest.mark.parametrize(
    "bad",
    [
        "signal.sigtimedwait([], 1)",
        "select.select([], [], [], 0.5)",
        "threading.Event().wait(0.5)",
        "threading.Condition().wait(timeout=1)",
        "queue.Queue().get(timeout=1)",
        "await asyncio.Event().wait()",
        "await asyncio.wait_for(asyncio.Event(), 1)",
        "await (event or asyncio.Event()).wait()",
        "await asyncio.get_running_loop().create_future()",
        "await asyncio.wait([task], timeout=0.2)",
        "tick = threading.Event()\n    while not done():\n        tick.wait(0.1)",
        "ends_s, tick = now() + 3, threading.Event()\n    tick.wait(0.1)",
        "await wait_at_most(3)",
        'subprocess.run(["sleep", "1"])',
    ],
)
def test_a_sleep_by_another_name_is_found(bad: str) -> None:
    (fault,) = tidiness.find_sleeps(Module("tests/a.py", f"async def f():\n    {bad}\n"))
    assert "sleeps instead of waiting" in fault


@pytest.mark.parametrize(
    "good",
    [
        "gate.wait(30)",
        "gate = threading.Event()\n    start(gate)\n    gate.wait(30)",
        "gate = threading.Event()\n    start(gate.set)\n    gate.wait(30)",
        "done, late = await asyncio.wait([task], timeout=0.2)",
        "await asyncio.wait([task])",
        "process.wait(10)",
        "signal.sigtimedwait([signal.SIGTERM], 1)",
        "select.select([reader], [], [], 0.5)",
        'subprocess.Popen(["sleep", "60"])',
        'observe_for(3, what="a frozen bookie")',
    ],
)
def test_a_wait_that_somebody_can_end_is_none(good: str) -> None:
    assert not tidiness.find_sleeps(Module("tests/a.py", f"async def f():\n    {good}\n"))


@pytest.mark.parametrize(
    "pause", ["observe_for(3)", 'let_pass(3, what="")', "let_pass(3, what=reason)"]
)
def test_a_pause_that_does_not_say_what_it_measures_is_found(pause: str) -> None:
    (fault,) = tidiness.find_sleeps(Module("tests/a.py", pause))
    assert "what it measures" in fault


def test_pauses_are_made_in_their_own_modules_alone() -> None:
    bad = "threading.Event().wait(seconds)\n"
    assert tidiness.find_sleeps(Module("tests/process/pauses.py", bad))
    chaos = "await wait_at_most(3)"
    assert not tidiness.find_sleeps(Module("tests/chaos/nemesis.py", chaos)), "a fault's length"
    for path in tidiness.PAUSE_MODULES:
        assert (ROOT / path).is_file()
        assert not tidiness.find_sleeps(Module(path, bad))


@pytest.mark.parametrize(
    "line",
    [
        "import time",
        "import os.path",
        "from asyncio import Queue",
        "from random import choice",
        "random.Random(7)",
        "Random(7)",
        "random.choice(bookies)",
        "datetime.now()",
        "uuid.uuid4()",
        "open(path)",
        "for b in {1, 2}: pass",
        "for b in set(bookies): pass",
        "[b for b in frozenset(bookies)]",
        "[b for b in {x for x in bookies}]",
    ],
)
def test_an_impure_core_is_found(line: str) -> None:
    assert tidiness.find_impurities(Module("libs/common/duramen/core/a.py", line + "\n"))


@pytest.mark.parametrize(
    "line",
    [
        "import random",
        "from random import Random",
        "def pick(rng: random.Random) -> int: return rng.randrange(3)",
        "for b in sorted(set(bookies)): pass",
        "is_member = b in {1, 2}",
    ],
)
def test_what_a_core_may_do_is_let_through(line: str) -> None:
    assert not tidiness.find_impurities(Module("libs/common/duramen/core/a.py", line + "\n"))


def test_an_undocumented_name_is_found() -> None:
    bad = "class A: ...\ndef b() -> None: ...\nasync def c() -> None: ...\n"
    assert len(tidiness.find_undocumented(Module("libs/a.py", bad))) == bad.count("\n")
    assert not tidiness.find_undocumented(Module("libs/a.py", "def _d() -> None: ...\n"))


def test_an_empty_name_is_found() -> None:
    bad = ["libs/a/utils.py", "libs/common/duramen/common/x.py", "tests/base/y.txt"]
    assert len(tidiness.find_name_faults(bad)) == len(bad)
    assert not tidiness.find_name_faults(["libs/common/duramen/ids.py", "docs/base"])


def test_a_crowded_folder_is_found() -> None:
    twelve = ["libs/a/__init__.py", *[f"libs/a/m{i}.py" for i in range(12)]]
    assert not tidiness.find_crowded_folders(twelve)
    assert tidiness.find_crowded_folders([*twelve, "libs/a/m12.py"])


def test_a_bad_layout_is_found() -> None:
    assert tidiness.find_layout_faults(["scratch.txt"])
    assert tidiness.find_layout_faults(["operator/__init__.py"])
    assert not tidiness.find_layout_faults(["operator/duramen_operator/__init__.py", "Makefile"])


@pytest.mark.parametrize(
    "kind", ["set[int | None]", "frozenset[None | str]", "abc.Set[A | B | None]"]
)
def test_a_set_that_may_hold_none_is_found(kind: str) -> None:
    assert len(tidiness.find_sets_with_none(Module("libs/a.py", f"a: {kind} = b\n"))) == 1


@pytest.mark.parametrize(
    "kind", ["set[int] | None", "dict[int | None, None]", "set[list[int | None]]"]
)
def test_what_may_hold_none_elsewhere_is_let_through(kind: str) -> None:
    assert not tidiness.find_sets_with_none(Module("libs/a.py", f"a: {kind} = b\n"))


def test_a_class_name_that_means_two_things_is_found() -> None:
    one, two = (Module(f"{folder}/a.py", "class _Row: ...\n") for folder in ("libs", "services"))
    (fault,) = names.find_twin_classes([one, two])
    assert "libs/a.py:1, services/a.py:1" in fault
    test = Module("tests/a.py", two.text)
    assert not names.find_twin_classes([one, test]), "tests may have a Row of their own"


@pytest.mark.parametrize(
    "line",
    [
        "class _ShelfFile: ...",
        "def take_office(): ...",
        "def _spell_frame(): ...",
        "async def tell_owner(): ...",
        "def choose(*, heir): ...",
        "self.shelf = 1",
        "OFFICE_COUNT = 1",
        "import a as surroundings",
        "spell_row: int = 1",
        "for heir in heirs: pass",
    ],
)
def test_an_old_word_in_a_name_is_found(line: str) -> None:
    assert names.find_old_names(Module("libs/a.py", line + "\n"))


@pytest.mark.parametrize(
    "line",
    [
        "their = 1",
        "shelf_files: int = 0",
        'answer["shelf"] = 1',
        "is_whole = file.tell()",
        "def foretell(): ...",
        "spelled = 1",
    ],
)
def test_other_names_are_let_through(line: str) -> None:
    assert not names.find_old_names(Module("libs/a.py", line + "\n"))


def test_a_module_by_an_old_name_is_found() -> None:
    bad = ["libs/a/shelf/b.py", "libs/a/whole.py", "tests/test_shelf_rot.py"]
    assert len(names.find_old_modules(bad)) == len(bad)
    assert not names.find_old_modules(["libs/a/read_whole.py", "tests/golden/shelf-data-v1.bin"])
