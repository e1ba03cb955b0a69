"""What gpusnap tells the outside: metrics, an event log, notifications.

Each is a plugin of the group ``gpusnap.plugins``, registered as a third party's would be, and
rests unless its environment variable is set. None has a part in an operation: see
:mod:`gpusnap.metrics.outlet`.
"""
