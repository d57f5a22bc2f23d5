"""Random sequences of calls on a tape and on a store, beside a model of what they must do.

The same sequences each time by default, others and more of them in `cargo xtask soak`. hypothesis prints a failing one as a program.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading

import hypothesis
import numpy as np
import outcrop
import pytest
from conftest import PATIENCE, covered
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

SOAK = os.environ.get("OUTCROP_SOAK", "0") != "0"

hypothesis.settings.register_profile(
    "outcrop",
    max_examples=5000 if SOAK else 50,
    stateful_step_count=50 if SOAK else 25,
    derandomize=not SOAK,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)
PROFILE = hypothesis.settings.get_profile("outcrop")

# What a snapshot is made of. Each is given by few numbers, so that a failing sequence can be read.
ARRAYS = st.builds(
    lambda seed, count, dtype, order: np.asarray(
        np.random.default_rng(seed).integers(0, 100, (count, 3)).astype(dtype), order=order
    ),
    st.integers(0, 9),
    st.sampled_from([0, 1, 50, 500, 1300, 3000]),
    st.sampled_from(["u1", "f4", "f8", ">i4", "c16"]),
    st.sampled_from("CF"),
)
SNAPSHOTS = st.one_of(ARRAYS, st.dictionaries(st.sampled_from(["u", "v", "é w"]), ARRAYS, min_size=1))
KEYS = st.integers(0, 7)

# Which of several versions or files: what there is depends on when it was written, and a sequence must not.
CHOICES = st.integers(0, 99)


def chosen(of, which):
    return sorted(of)[which % len(of)]



def assert_same(found, expected):
    """Whether a snapshot or a version is what was saved."""
    if isinstance(expected, dict):
        assert set(found) == set(expected)
        for name, value in expected.items():
            assert_same(found[name], value)
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype and found.shape == expected.shape
        np.testing.assert_array_equal(found, expected)
    else:
        assert type(found) is type(expected) and found == expected


def copied(value):
    return {name: copied(part) for name, part in value.items()} if isinstance(value, dict) else np.array(value, copy=True)


def flip_or_cut(path, place, cuts):
    """Changes a byte of a file, or cuts it off there."""
    data = bytearray(path.read_bytes())
    if not data:
        return False
    at = place % len(data)
    if cuts:
        del data[at:]
    else:
        data[at] ^= 0x40
    path.write_bytes(data)
    return True


class OnATape(RuleBasedStateMachine):
    """A tape beside a dictionary."""

    HOST_BYTES = 256 * 1024

    @initialize(
        has_dir=st.booleans(),
        limit=st.sampled_from([None, "300 KiB"]),
        order=st.sampled_from(["reverse", "forward", "unknown", [3, 1, 3, 0, 7, 2]]),
    )
    def open(self, has_dir, limit, order):
        self.root = pathlib.Path(tempfile.mkdtemp())
        self.settings = {"host": self.HOST_BYTES, "order": order, "pin": False, "patience_seconds": 0.05}
        if has_dir:
            self.settings["dir"] = {"path": self.root / "scratch", **({"limit": limit} if limit else {})}
        self.has_room = has_dir and limit is None
        self.held, self.lent, self.expected = [], {}, {}
        self.is_damaged = False
        self.tape = outcrop.Tape(**self.settings)

    def may_fail(self, error):
        """Whether a call that needs room may fail with this error."""
        if isinstance(error, outcrop.Held):
            return bool(self.held or self.lent)
        return isinstance(error, outcrop.Full) and not (self.has_room and not self.held and not self.lent)

    @rule(key=KEYS, values=SNAPSHOTS)
    def save(self, key, values):
        try:
            self.tape.save(key, **values) if isinstance(values, dict) else self.tape.save(key, values)
        except outcrop.Exists:
            assert key in self.expected or key in self.lent
        except outcrop.TooLarge:
            # Regions begin at multiples of 64 bytes.
            arrays = values.values() if isinstance(values, dict) else [values]
            assert sum(array.nbytes + 64 for array in arrays) > self.HOST_BYTES
        except (outcrop.Full, outcrop.Held) as error:
            assert self.may_fail(error), error
        else:
            assert key not in self.expected and key not in self.lent
            self.expected[key] = copied(values)

    @rule(key=KEYS)
    def save_what_is_too_large(self, key):
        with pytest.raises((outcrop.TooLarge, outcrop.Exists)):
            self.tape.save(key, np.zeros(self.HOST_BYTES + 1, "u1"))

    @rule(key=KEYS, values=ARRAYS)
    def lend(self, key, values):
        try:
            lent = self.tape.lend(key, values.shape, values.dtype, order="F" if values.flags.f_contiguous else "C")
        except outcrop.Exists:
            assert key in self.expected or key in self.lent
        except (outcrop.Full, outcrop.Held) as error:
            assert self.may_fail(error), error
        else:
            assert key not in self.expected and key not in self.lent
            lent.__enter__()[...] = values
            self.lent[key] = (lent, copied(values))

    @precondition(lambda self: self.lent)
    @rule(data=st.data(), seals=st.booleans(), has_view=st.booleans())
    def end_lending(self, data, seals, has_view):
        key = data.draw(st.sampled_from(sorted(self.lent)))
        lent, values = self.lent.pop(key)
        view = lent.__enter__()[:1] if has_view else None
        if not seals:
            lent.abandon()
            return
        try:
            lent.seal()
        except (outcrop.Full, outcrop.Held):
            assert has_view, "only a copy needs room"
        else:
            self.expected[key] = values
        if view is not None and view.size:
            with pytest.raises(ValueError, match="read-only"):
                lent.__enter__()[...] = 0

    @rule(key=KEYS, way=st.sampled_from(["take", "get", "default"]), holds=st.booleans())
    def read(self, key, way, holds):
        call = {"take": self.tape.take, "get": self.tape.get, "default": lambda key: self.tape.get(key, None)}[way]
        try:
            found = call(key)
        except outcrop.Missing:
            assert key not in self.expected and way != "default"
        except (outcrop.Full, outcrop.Held) as error:
            assert self.may_fail(error), error
            assert key in self.tape
        except outcrop.Damaged:
            assert self.is_damaged
            if key not in self.tape:
                del self.expected[key]
        else:
            if key not in self.expected:
                assert way == "default" and found is None
                return
            expected = self.expected.pop(key) if way == "take" else self.expected[key]
            assert_same(found, expected)
            if holds:
                self.held.append((found, expected))

    @rule(key=KEYS)
    def discard(self, key):
        try:
            self.tape.discard(key)
        except outcrop.Missing:
            assert key not in self.expected
        else:
            del self.expected[key]

    @precondition(lambda self: self.held)
    @rule()
    def give_back(self):
        self.held.pop()

    # On a full tape they would wait for this thread, which has used the tape and may take something.
    @precondition(lambda self: self.has_room and not self.held and not self.lent)
    @rule(plans=st.lists(st.tuples(ARRAYS, st.booleans()), min_size=2, max_size=4))
    def threads(self, plans):
        """Each saves under a key of its own, and takes it back or not."""
        failures = []

        def take(key, values):
            try:
                assert_same(self.tape.take(key), values)
            except outcrop.Damaged:
                assert self.is_damaged
                if key in self.tape:
                    self.tape.discard(key)

        def work(key, values, takes):
            try:
                self.tape.save(key, values)
                if takes:
                    take(key, values)
            except outcrop.Held:
                pass  # What others take at this moment is held by them.
            except BaseException as error:
                failures.append(error)

        workers = [threading.Thread(target=work, args=(100 + number, *plan)) for number, plan in enumerate(plans)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(PATIENCE)
            assert not worker.is_alive()
        assert not failures, failures
        for number, (values, _) in enumerate(plans):
            if 100 + number in self.tape:
                take(100 + number, values)

    @precondition(lambda self: "dir" in self.settings)
    @rule(place=st.integers(0, 10**6))
    def damage(self, place):
        for path in sorted(self.root.rglob("*")):
            if path.is_file():
                self.is_damaged |= flip_or_cut(path, place, False)

    @rule()
    def close_and_open(self):
        tape, self.tape = self.tape, None
        tape.close()
        tape.close()
        for lent, _ in self.lent.values():
            with pytest.raises(outcrop.Usage, match="closed"):
                lent.seal()
        for call in (lambda: tape.take(1), lambda: tape.save(1, np.zeros(1)), lambda: len(tape), tape.keys):
            with pytest.raises(outcrop.Usage, match="closed"):
                call()
        self.expected, self.lent, self.is_damaged = {}, {}, False
        self.tape = outcrop.Tape(**self.settings)

    @invariant()
    def looks_as_expected(self):
        if getattr(self, "tape", None) is None:
            return
        assert self.tape.keys() == list(self.tape) == sorted(self.expected)
        assert len(self.tape) == len(self.expected) and str(len(self.expected)) in repr(self.tape)
        assert [key for key in range(8) if key in self.tape] == sorted(self.expected)
        for found, expected in self.held:
            assert_same(found, expected)

    def teardown(self):
        if hasattr(self, "tape"):
            self.tape.close()
            for found, expected in self.held:
                assert_same(found, expected)
            assert not [path for path in self.root.rglob("*") if path.is_file()], "nothing is left of a tape"
            shutil.rmtree(self.root)


class InAStore(RuleBasedStateMachine):
    """A store beside a dictionary of versions."""

    # Where its directories are, and how much fits there; without a limit, where temporary files are.
    room = None

    @initialize(
        count=st.integers(1, 2),
        versions=st.integers(0, 3),
        keep=st.sampled_from([None, None, 2, 3]),
        settings=st.fixed_dictionaries(
            {
                "incremental": st.booleans(),
                "compression": st.sampled_from(["none", "lz4"]),
                "block": st.sampled_from([256, 4096]),
                "chain_max": st.sampled_from([2, 8]),
                "dedup": st.sampled_from(["versions", "inside"]),
            }
        ),
    )
    def open(self, count, versions, keep, settings):
        self.root = pathlib.Path(tempfile.mkdtemp(dir=self.room))
        self.keep = None if self.room else keep
        self.dirs = [self.root / f"dir{number}" for number in range(1 if self.room else count)]
        self.settings = {"dir": self.dirs, "host": "4 MiB", "pin": False, "keep_last": self.keep, **settings}
        self.arrays = {"u": np.zeros(30_000), "v": np.zeros((40, 50), "f4", order="F")}
        # All versions there may be, those that must be, and from which one the program goes on if that is not the newest.
        self.expected, self.sure, self.restored = {}, set(), None
        self.damaged = set()
        self.store, self.highest = None, 0
        self.begin()
        for seed in range(versions):
            self.save(1, "u", seed, 1)

    def begin(self):
        self.store = outcrop.Store(**self.settings)
        self.session = self.store.session("run")
        self.restored = None

    def hear(self, error):
        """Failed versions are reported by number, once each."""
        assert self.room, error
        versions = [int(number) for number in re.findall(r"version (\d+) of run has not reached", str(error))]
        assert versions, error
        for version in versions:
            assert version in self.expected, f"{version} was reported before, or never saved: {error}"
            del self.expected[version]
            self.sure.discard(version)

    def settle(self, wait=None):
        """Waits for all versions, and forgets what the store may have forgotten."""
        try:
            (wait or self.session.flush)()
        except outcrop.OutcropError as error:
            self.hear(error)
        self.session.closed or self.session.flush()  # which has nothing more to report
        if self.keep is not None:
            # What is damaged does not keep others from being the newest.
            kept = sorted(self.sure)[-self.keep :]
            self.sure = set(kept)
            if not self.damaged:
                self.expected = {version: self.expected[version] for version in kept}

    @rule(
        step=st.integers(1, 3),
        name=st.sampled_from("uv"),
        seed=st.integers(0, 99),
        share=st.sampled_from([0.01, 1]),
        again=st.booleans(),
    )
    def save(self, step, name, seed, share, again=False):
        generator = np.random.default_rng(seed)
        flat = self.arrays[name].reshape(-1, order="A")
        begin = generator.integers(flat.size)
        changed = flat[begin : begin + max(1, int(share * flat.size))]
        changed[:] = generator.random(changed.size)
        self.arrays[name][...] = flat.reshape(self.arrays[name].shape, order="F" if name == "v" else "C")
        if again and self.room:
            # The numbers of those that have failed, and were reported, are free.
            self.highest = max(self.expected, default=0)
        version = self.highest = self.highest + step
        values = {**self.arrays, "step": version, "about": {"seed": seed}, "text": f"é{seed}"}
        try:
            self.session.save(version, **values)
        except outcrop.OutcropError as error:
            self.hear(error)
            return
        self.expected[version] = {**values, **copied(self.arrays)}
        self.sure.add(version)
        self.restored = None

    @rule(which=CHOICES)
    def save_again(self, which):
        """The number of an older version: refused, unless the program has gone back to before it."""
        self.settle()
        if not self.expected or self.damaged:
            return
        version = chosen(self.expected, which)
        try:
            self.session.save(version, **self.arrays)
        except outcrop.Exists:
            assert self.restored is None or self.restored >= version
            return
        except outcrop.OutcropError as error:
            self.hear(error)
            return
        assert self.restored is not None and self.restored < version
        self.forget_above(self.restored)
        self.expected[version] = copied(self.arrays)
        self.sure.add(version)
        self.highest, self.restored = version, None
        self.settle()

    def forget_above(self, version):
        self.highest = version
        self.expected = {number: values for number, values in self.expected.items() if number <= version}
        self.sure = {number for number in self.sure if number <= version}

    @rule()
    def restore(self):
        self.settle()
        targets = {name: np.full_like(array, 7) for name, array in self.arrays.items()}
        try:
            version = self.session.restore(**targets)
        except outcrop.Damaged:
            assert not self.sure and self.damaged
            for target in targets.values():
                assert (target == 7).all(), "all or nothing"
            return
        if version is None:
            assert not self.sure
            return
        assert version.number >= max(self.sure, default=0)
        assert self.damaged or not version.skipped, "nothing else is passed over"
        for name, target in targets.items():
            assert_same(target, self.expected[version.number][name])
            self.arrays[name] = target
        self.restored = version.number if version.number != max(self.expected) else None
        if self.damaged and self.restored is not None:
            # What was passed over is replaced by whatever is saved next; the model cannot know how far.
            self.session.rewind(version.number)
            self.forget_above(version.number)
            self.restored = None

    @rule(which=CHOICES, reads=st.sampled_from(["into", "mapping", "archive"]))
    def read(self, which, reads):
        self.settle()
        if not self.sure:
            return
        number = chosen(self.sure, which)
        expected = self.expected[number]
        if reads == "into":
            targets = {name: np.full_like(array, 7) for name, array in self.arrays.items()}
            self.session[number].into(**targets)
            for name, target in targets.items():
                assert_same(target, expected[name])
                self.arrays[name] = target
            self.restored = number if number != max(self.expected) else None
        elif reads == "mapping":
            assert_same(dict(self.session.get(number)), expected)
        elif not self.damaged:
            for path in self.dirs:
                found = outcrop.versions("run", path)
                # Old ones go a moment later.
                assert found == sorted(self.sure) or (self.keep is not None and set(found) > self.sure)
                assert_same(dict(outcrop.read("run", path, number)), expected)

    @rule(which=CHOICES)
    def read_what_may_be_damaged(self, which):
        self.settle()
        if not self.damaged or not self.expected:
            return
        number = chosen(self.expected, which)
        try:
            assert_same(dict(self.session[number]), self.expected[number])
        except (outcrop.Damaged, outcrop.Missing) as error:
            assert number not in self.sure, error

    @rule(count=st.integers(2, 4))
    def threads(self, count):
        """They read while a version is in flight."""
        self.settle()
        if not self.sure:
            return
        failures, numbers = [], sorted(self.sure)

        def work(number):
            try:
                assert_same(dict(self.session[number]), self.expected[number])
            except BaseException as error:
                failures.append(error)

        workers = [threading.Thread(target=work, args=(numbers[at % len(numbers)],)) for at in range(count)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(PATIENCE)
            assert not worker.is_alive()
        assert not failures, failures

    @rule(which=CHOICES)
    def rewind(self, which):
        self.settle()
        if not self.sure or self.damaged:
            return
        version = None if which % 4 == 3 else chosen(self.sure, which // 4)
        self.session.rewind(version)
        self.forget_above(version or 0)
        self.restored = None

    @rule()
    def reopen(self):
        self.end()
        self.begin()

    def end(self):
        self.settle(self.store.close)
        self.store.close()
        for call in (self.session.flush, self.session.latest, lambda: self.session.save(10**6, u=np.zeros(1))):
            with pytest.raises(outcrop.Usage, match="closed"):
                call()

    @precondition(lambda self: not self.room)
    @rule(which=CHOICES, place=st.integers(0, 10**6), cuts=st.booleans(), restores=st.booleans())
    def damage(self, which, place, cuts, restores):
        """A file changes while no program has it open, one of the newest."""
        self.end()
        at = which % len(self.dirs)
        files = sorted((path.name[-5:], path) for path in self.dirs[at].rglob("*-*") if path.is_file())[-6:]
        if files and flip_or_cut(chosen(files, which // 4)[1], place, cuts):
            self.damaged.add(at)
            if len(self.damaged) == len(self.dirs):
                self.sure = set()
        self.begin()
        if restores:
            self.restore()

    @invariant()
    def looks_as_expected(self):
        if getattr(self, "store", None) is None:
            return
        versions = self.session.versions
        assert versions == sorted(versions)
        assert 10**6 not in self.session and self.session.get(10**6) is None
        # Some may have failed without being reported yet, or be removed at this moment.
        if not self.room and self.keep is None:
            assert versions == list(self.session) and len(self.session) == len(versions)
            assert self.sure <= set(versions) <= set(self.expected)
        if self.expected:
            assert list(self.store) == ["run"] and "run" in self.store and len(self.store) == 1

    def teardown(self):
        if getattr(self, "store", None) is not None:
            self.end()
            if self.room and self.sure:
                with outcrop.Store(**self.settings).session("run") as session:
                    assert session.versions == sorted(self.expected)
                    for number, expected in self.expected.items():
                        assert_same(dict(session[number]), expected)
            shutil.rmtree(self.root)


class OnAFullDisk(InAStore):
    """The same where there is little room."""

    room = os.environ.get("OUTCROP_TEST_ROOM")


def sweep(machine, where):
    """Runs random sequences, and counts them."""
    what = f"random sequences of calls from Python {where}"

    class Counted(machine):
        def teardown(self):
            covered[what] += 1
            super().teardown()

    # As which a failing sequence is printed.
    Counted.__name__ = machine.__name__
    hypothesis.stateful.run_state_machine_as_test(Counted, settings=PROFILE)
    assert covered[what] >= PROFILE.max_examples // 2, "few of them were carried out"


def test_a_tape_does_what_a_dictionary_does():
    sweep(OnATape, "on a tape")


def test_a_store_does_what_a_dictionary_of_versions_does():
    sweep(InAStore, "in a store")


def test_a_store_on_a_full_disk_reports_what_is_not_there(tmp_path):
    if OnAFullDisk.room:
        sweep(OnAFullDisk, "on a full disk")
        return
    # In a process with mounts of its own, so that nothing is left if it is killed.
    mount = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=2m tmpfs "$1" && shift && exec "$@"', "sh", str(tmp_path)]
    if subprocess.run([*mount, "true"], capture_output=True).returncode != 0:
        pytest.skip("a small file system needs root and unshare")
    test = f"{__file__}::test_a_store_on_a_full_disk_reports_what_is_not_there"
    python = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=short", test]
    environment = {**os.environ, "OUTCROP_TEST_ROOM": str(tmp_path)}
    done = subprocess.run([*mount, *python], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    what, count = re.search("COVERED (.*): ([0-9]+)", done.stdout).groups()
    covered[what] += int(count)
