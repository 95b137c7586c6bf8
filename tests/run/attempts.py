import ctypes, errno, json, os, signal, socket, stat, struct, subprocess, sys

libc = ctypes.CDLL(None, use_errno=True)


def report(name, held, said=""):
    print(json.dumps({"name": name, "held": bool(held), "said": str(said)[:300]}), flush=True)


def fails(name, attempt, *codes):
    """Reports an attempt, which must raise an OSError; if `codes` are given, with one of these errors."""
    try:
        said = attempt()
    except OSError as error:
        held = not codes or error.errno in codes
        report(name, held, errno.errorcode.get(error.errno, error))
    except Exception as error:
        report(name, False, f"the attempt is broken: {error!r}")
    else:
        report(name, False, f"it worked: {said!r}")


def holds(name, test):
    """Reports a test, which must return a true value."""
    try:
        said = test()
        report(name, said, said)
    except Exception as error:
        report(name, False, repr(error))


def call(number, *arguments):
    """Makes a system call by its number; raises an OSError if it fails."""
    ctypes.set_errno(0)
    packed = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    answer = libc.syscall(ctypes.c_long(number), *packed)
    if answer == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return answer


def in_child(attempt):
    """Runs an attempt in a child process; returns its status from `waitpid`."""
    child = os.fork()
    if child == 0:
        try:
            attempt()
        except OSError as error:
            os._exit(100 + min(error.errno, 150))
        except BaseException:
            os._exit(99)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def finish():
    print("finished", flush=True)
