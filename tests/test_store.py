"""The database of a class: what it keeps, and what happens when it cannot."""

import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from classroom.records import Decision, Fault, HandIn, PublishedGrade, Student
from classroom.store import SCHEMA_VERSION, Store, StoreError
from grader.spec.environment import EnvironmentFault
from grader.spec.problem import ROOT
from tests.classes import AT, hand_in, key_of, result_of


@pytest.fixture
def path(tmp_path):
    return tmp_path / "class.db"


@pytest.fixture
def store(path):
    with Store(path) as store:
        yield store


def override(student="ada"):
    given = {"problem": "p02", "points": 1, "author": "t", "reason": "r", "at": AT}
    return Decision(kind="override", student=student, **given)


def extension(student="ada"):
    return Decision(kind="extend", student=student, days=2, author="t", reason="r", at=AT)


def test_what_is_stored_is_there_when_it_is_opened_again(path):
    with Store(path) as store:
        store.set_students([Student(id="b"), Student(id="a", name="=1")])
        record = hand_in(store, "a", {"p02": b"x"}, notes=("n",))
        store.save_results([result_of("p02", b"x")])
        store.add(Fault(key=key_of("p04", b"x"), text="lost", at=AT))
        store.add(override())
        store.add(extension())
        store.set_versions({"p02": "v1", "p04": "v1"})
        store.set_versions({"p04": "v2"})
        grade = PublishedGrade(student="a", problem="p02", points=7, possible=10)
        assert store.publish("t", AT, [grade]) == 1
    with Store(path) as store:
        assert [s.id for s in store.students()] == ["b", "a"]
        assert store.hand_ins() == {"a": record}
        assert store.data(record.files["p02"]) == b"x"
        assert store.result(key_of("p02", b"x")) == store.result(key_of("p02", b"x"))
        assert store.result(key_of("p02", b"x")).result.points.earned == 7
        assert store.result(key_of("p02", b"x", "v2")) is None
        assert [f.text for f in store.faults()] == ["lost"]
        assert store.decisions() == (override(), extension())
        assert store.decisions("extend") == (extension(),)
        assert store.versions() == {"p02": "v1", "p04": "v2"}
        assert store.last_publication().grades == (grade,)


def test_a_result_that_is_there_stays_and_a_hand_in_is_replaced(store):
    store.save_results([result_of("p02", b"x", 7.0)])
    store.save_results([result_of("p02", b"x", 1.0), result_of("p04", b"x", 2.0)])
    assert store.result(key_of("p02", b"x")).result.points.earned == 7.0
    assert store.has_result(key_of("p04", b"x")) and not store.has_result(key_of("p04", b"y"))
    hand_in(store, "ada", {"p02": b"x"})
    hand_in(store, "ada", {"p04": b"y"})
    assert set(store.hand_ins()["ada"].files) == {"p04"}


def test_the_hashes_of_a_hand_in_are_those_of_its_files(store):
    with pytest.raises(ValueError, match="hashes"):
        store.save_hand_in(HandIn(student="a", source="s", files={"p02": "0"}), {"p02": b"x"})
    assert store.hand_ins() == {}


def test_a_file_that_nobody_handed_in(store):
    with pytest.raises(StoreError, match="no file has the SHA-256 abc"):
        store.data("abc")


def test_a_student_is_forgotten_with_everything_that_nobody_else_handed_in(store, path):
    store.set_students([Student(id="ada", name="Ada Secret"), Student(id="bob")])
    hand_in(store, "ada", {"p02": b"shared", "p04": b"hers alone"})
    hand_in(store, "bob", {"p02": b"shared"})
    store.save_results([result_of("p02", b"shared"), result_of("p04", b"hers alone")])
    store.add(Fault(key=key_of("p04", b"hers alone"), text="lost", at=AT))
    store.add(Fault(key=key_of("p02", b"shared"), text="lost", at=AT))
    store.add(override())
    store.add(extension())
    grade = PublishedGrade(student="ada", problem="p02", points=7, possible=10)
    store.publish("t", AT, [grade])
    assert store.forget("ada") == 8
    assert [s.id for s in store.students()] == ["bob"] and set(store.hand_ins()) == {"bob"}
    assert store.has_result(key_of("p02", b"shared"))
    assert not store.has_result(key_of("p04", b"hers alone"))
    assert [f.key.problem for f in store.faults()] == ["p02"]
    assert not store.decisions()
    assert store.last_publication().grades == ()
    assert store.forget("ada") == 0
    data = path.read_bytes()
    assert b"Ada Secret" not in data and b"hers alone" not in data and b"shared" in data


def test_a_newer_version_is_refused_and_left_alone(path):
    Store(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    before = path.read_bytes()
    expected = f"got version {SCHEMA_VERSION + 1}, expected {SCHEMA_VERSION} or older: a newer"
    with pytest.raises(StoreError, match=expected):
        Store(path)
    assert path.read_bytes() == before


def test_another_programs_database_is_refused_and_left_alone(path):
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE mine (x)")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match="got another program's database"):
        Store(path)
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]
    connection.close()


@pytest.mark.parametrize("data", [b"garbage" * 1000, b"SQLite format 3\0" + b"\xff" * 4000])
def test_garbage_is_refused(path, data):
    path.write_bytes(data)
    with pytest.raises(StoreError, match=str(path)):
        Store(path)
    assert path.read_bytes() == data


def test_a_place_where_there_can_be_none(tmp_path):
    for place in (tmp_path, tmp_path / "no" / "class.db"):
        with pytest.raises(StoreError, match="unable to open database file"):
            Store(place)
    assert issubclass(StoreError, EnvironmentFault)  # exit code 4


def test_an_empty_file_becomes_a_database(path):
    path.touch()
    with Store(path) as store:
        assert store.students() == ()


def test_a_database_that_may_not_be_written_can_be_read(store):
    hand_in(store, "ada", {"p02": b"x"})
    store._connection.execute("PRAGMA query_only = ON")  # as SQLite is with a read-only file
    with pytest.raises(StoreError, match="attempt to write a readonly database: what is stored"):
        store.set_students([])
    with pytest.raises(StoreError, match="readonly"):
        store.add(override())
    assert set(store.hand_ins()) == {"ada"}


def _python(code, *arguments):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_full_disk_loses_only_what_was_not_stored(store):
    hand_in(store, "ada", {"p02": b"x"})
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match=r"full: what is stored already is kept; run the command"):
        hand_in(store, "bob", {"p02": b"y" * 100_000})
    assert set(store.hand_ins()) == {"ada"}
    store._connection.execute("PRAGMA max_page_count = 10000")
    hand_in(store, "bob", {"p02": b"y" * 100_000})
    assert set(store.hand_ins()) == {"ada", "bob"}


def test_a_file_that_may_not_grow_is_an_error_and_not_the_end(path):
    code = """if True:
        import resource, signal, sys
        from pathlib import Path
        from classroom.records import Student
        from classroom.store import Store, StoreError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        store = Store(Path(sys.argv[1]))
        store.set_students([Student(id="ada")])
        size = Path(sys.argv[1]).stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        try:
            store.set_students([Student(id=f"s{n}", name="x" * 500) for n in range(999)])
        except StoreError as error:
            print(error)
        print(*(s.id for s in store.students()))
    """
    done = _python(code, path)
    assert "what is stored already is kept" in done.stdout and done.stdout.endswith("\nada\n")


def test_another_process_in_a_transaction_is_waited_for_and_then_named(path, monkeypatch):
    with Store(path) as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        store._connection.execute("PRAGMA busy_timeout = 100")
        with pytest.raises(StoreError, match="database is locked"):
            store.set_students([])
        assert store.students() == ()  # reading goes on
        other.execute("ROLLBACK")
        other.close()
        store.set_students([Student(id="ada")])


def test_a_process_that_is_killed_in_a_transaction_leaves_what_was_before(path):
    with Store(path) as store:
        hand_in(store, "ada", {"p02": b"x"})
    code = """if True:
        import sys, time
        from pathlib import Path
        from classroom.store import Store
        store = Store(Path(sys.argv[1]))
        with store._transaction():
            store._connection.execute("PRAGMA cache_size = 1")  # so that it reaches the disk
            store._connection.execute("DELETE FROM hand_ins")
            for n in range(500):
                store._connection.execute(
                    "INSERT INTO files VALUES (?, ?)", (str(n), bytes(5000)))
            print("now", flush=True)
            time.sleep(600)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "now\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    began = time.process_time()
    with Store(path) as store:
        assert set(store.hand_ins()) == {"ada"}
        assert store._all("SELECT count(*) FROM files") == [(1,)]
        assert store._all("PRAGMA integrity_check") == [("ok",)]
    assert time.process_time() - began < 5
