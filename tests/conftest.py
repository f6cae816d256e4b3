"""For all tests."""

import signal

# A shell starts background jobs with Ctrl-C ignored, and programs started by the tests would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
