"""Makes a test target of every test file."""

def py_tests(deps, data = [], large = [], pytest_only = {}):
    """Makes a `py_test` of every `*_test.py` below this folder.

    `agents/ppo/builder_test.py` becomes `:agents/ppo/builder_test`.

    Args:
      deps: What every test may import.
      data: Other files that every test may read.
      large: Test files that need more than the five minutes of a medium one.
      pytest_only: Patterns of test files that `//tests/...` leaves out, and
        why. They are targets still, and can be run by name.
    """
    files = native.glob(["**/*_test.py"])
    manual = native.glob(pytest_only.keys())
    for file in large:
        if file not in files:
            fail("tests/BUILD lists %s, which does not exist." % file)
    for file in files:
        native.py_test(
            name = file[:-len(".py")],
            size = "large" if file in large else "medium",
            srcs = [
                file,
                "run_pytest.py",
            ],
            args = ["tests/" + file],
            data = data,
            main = "run_pytest.py",
            tags = ["manual"] if file in manual else [],
            deps = deps,
        )
