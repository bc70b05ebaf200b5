"""Runs tests of a framework's own suite and prints a line of JSON for each: what began, and how it
ended. Needs no more than Python; uses pytest where there is one and the file needs it.

  suite_runner.py SECONDS PATTERN FILE…    tests whose name matches; after SECONDS none is begun
  suite_runner.py SECONDS = FILE…          those whose names stand on standard input, one a line"""

import importlib.util
import json
import os
import re
import sys
import time
import unittest


def say(**what):
    print("@" + json.dumps(what), flush=True)


class Chosen:
    """Which tests are wanted, and for how long new ones may begin."""

    def __init__(self, seconds, pattern):
        self.end = time.monotonic() + seconds
        self.names = set(sys.stdin.read().split("\n")) if pattern == "=" else None
        self.pattern = re.compile(pattern)

    def wants(self, name):
        return name in self.names if self.names is not None else bool(self.pattern.search(name))

    def over(self):
        return time.monotonic() > self.end


class Recorder:
    """What pytest tells a plugin."""

    def __init__(self, chosen):
        self.chosen = chosen
        self.outcome = {}

    @staticmethod
    def name(nodeid):
        return nodeid.replace(os.sep, "/").rsplit("/", 1)[-1]

    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if self.chosen.wants(self.name(item.nodeid))]

    def pytest_collectreport(self, report):
        if report.failed:
            say(collect=self.name(report.nodeid), why=str(report.longrepr)[-400:])

    def pytest_runtest_protocol(self, item):
        if self.chosen.over():
            item.session.shouldstop = "out of time"
        return None

    def pytest_runtest_logstart(self, nodeid):
        say(begins=self.name(nodeid))

    def pytest_runtest_logreport(self, report):
        name = self.name(report.nodeid)
        if report.failed:
            self.outcome[name] = "failed" if report.when == "call" else "error"
        elif report.skipped:
            self.outcome.setdefault(name, "xfailed" if hasattr(report, "wasxfail") else "skipped")
        elif report.when == "call":
            self.outcome.setdefault(name, "passed")
        if report.when == "teardown":
            say(test=name, outcome=self.outcome.get(name, "passed"))


class Result(unittest.TestResult):
    """What unittest tells a result. A test with subtests fails if one of them does."""

    def startTest(self, test):
        super().startTest(test)
        self.outcome = "passed"
        say(begins=test.id())

    def addError(self, test, err):
        super().addError(test, err)
        self.outcome = "error"

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.outcome = "failed"

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err:
            self.outcome = "failed"

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.outcome = "skipped"

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self.outcome = "xfailed"

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.outcome = "failed"

    def stopTest(self, test):
        super().stopTest(test)
        say(test=test.id(), outcome=self.outcome)


def flat(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        else:
            yield test


def with_unittest(chosen, files):
    for path in files:
        name = os.path.splitext(os.path.basename(path))[0]
        sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
        # PyTorch's tests want to be in the script that runs.
        sys.argv = [os.path.abspath(path)]
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        # Helper processes of a test import the module by its name.
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException as why:  # also unittest.SkipTest, and SystemExit of a file that finds no GPU
            say(collect=name, why=f"{type(why).__name__}: {why}"[-400:])
            continue
        result = Result()
        for test in flat(unittest.defaultTestLoader.loadTestsFromModule(module)):
            if chosen.over():
                return
            if chosen.wants(test.id()):
                unittest.TestSuite([test]).run(result)


def with_pytest(chosen, files):
    import pytest

    folder = os.path.dirname(os.path.abspath(files[0]))
    pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--continue-on-collection-errors", "--rootdir", folder, *files],
                plugins=[Recorder(chosen)])


def main():
    chosen = Chosen(float(sys.argv[1]), sys.argv[2])
    files = sys.argv[3:]
    imports = re.compile(r"^\s*(?:import|from)\b.*\bpytest\b", re.MULTILINE)
    wants_pytest = any(imports.search(open(path, encoding="utf-8").read()) for path in files)
    (with_pytest if wants_pytest else with_unittest)(chosen, files)
    say(done=True)
    sys.stdout.flush()
    # Threads of the framework must not hold up the end, whose own checks are elsewhere.
    os._exit(0)


if __name__ == "__main__":
    main()
